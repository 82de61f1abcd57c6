// Serves stripe-stateful-mock (https://github.com/pushplay/stripe-stateful-mock,
// MIT) on loopback alone; its own starter binds every interface. Prints its
// address, and ends when its standard input does, so that no test leaves it
// behind.
//
// It is left as it is but for two things around it:
//
//   - it keeps no customer on a charge, so its filter by customer would hide all
//     of them: the filter is taken off, and the reader compares metadata;
//   - it knows no PaymentIntents: their list is empty.
"use strict";

const http = require("node:http");
const { createExpressApp } = require("stripe-stateful-mock");

const app = createExpressApp();

const server = http.createServer((req, res) => {
  const url = new URL(req.url, "http://127.0.0.1");
  if (req.method === "GET" && url.pathname === "/v1/payment_intents") {
    res.setHeader("Content-Type", "application/json");
    res.end(JSON.stringify({ object: "list", data: [], has_more: false, url: "/v1/payment_intents" }));
    return;
  }
  if (req.method === "GET" && url.pathname === "/v1/charges") {
    url.searchParams.delete("customer");
    req.url = url.pathname + url.search;
  }
  app(req, res);
});

server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
process.stdin.on("end", () => process.exit(0)).resume();
