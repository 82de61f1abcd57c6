package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// lineOf is an answer's line, whichever of the two it is.
type lineOf struct {
	Line     int            `json:"line"`
	Key      string         `json:"key"`
	Stream   string         `json:"stream"`
	Version  int            `json:"version"`
	Replayed bool           `json:"replayed"`
	Bill     map[string]any `json:"bill"`

	Status int    `json:"status"`
	Code   string `json:"code"`
	Errors []struct{ Field, Message string }
}

func (i *instance) batch(body string, header ...string) answer {
	i.t.Helper()
	r := i.request(http.MethodPost, "/v1/commands:batch", body, header...)
	r.Header.Set("Content-Type", ndjson)
	return i.do(r)
}

func (a answer) lines(t *testing.T) (lines []lineOf) {
	t.Helper()
	if a.status != 200 || a.header.Get("Content-Type") != ndjson {
		t.Fatalf("got %d %s: %s", a.status, a.header.Get("Content-Type"), a.body)
	}
	for text := range strings.Lines(a.body) {
		var l lineOf
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		lines = append(lines, l)
	}
	return lines
}

func customers(n int) string {
	var b strings.Builder
	for c := range n {
		fmt.Fprintf(&b, `{"command":"register-customer","body":{"customer_id":"c%04d","stripe_customer_id":"cus_%d","payment_method_id":"pm_card"}}`+"\n", c, c)
		fmt.Fprintf(&b, `{"command":"activate-subscription","body":{"customer_id":"c%04d","amount_minor":5000,"currency":"usd","cadence":"monthly","anchor_day":1,"time_zone":"UTC","starts_on":"2026-11-01"}}`+"\n", c)
	}
	return b.String()
}

// The second command of each customer is refused unless it comes after the first.
func TestBatchKeepsOrder(t *testing.T) {
	t.Parallel()
	i := start(t)
	const n = 200
	begun := time.Now()
	lines := i.batch(customers(n)).lines(t)
	t.Logf("%d commands took %s", len(lines), time.Since(begun))
	if len(lines) != 2*n {
		t.Fatalf("%d lines for %d", len(lines), 2*n)
	}
	for k, l := range lines {
		if l.Line != k+1 || l.Status != 0 || l.Stream != fmt.Sprintf("customer/c%04d", k/2) || l.Version != k%2+1 || l.Replayed {
			t.Fatalf("line %d is answered by %+v", k+1, l)
		}
	}
	for k, l := range i.batch(customers(n)).lines(t) {
		if l.Line != k+1 || !l.Replayed {
			t.Fatalf("the second time line %d is answered by %+v", k+1, l)
		}
	}
	if got := i.events(); got != 2*n {
		t.Errorf("%d facts, want %d", got, 2*n)
	}
}

func TestBadLinesLeaveTheOthers(t *testing.T) {
	t.Parallel()
	i := start(t, limited(Limits{Body: 2000}))
	register := func(customer string) string {
		return fmt.Sprintf(`"command":"register-customer","body":{"customer_id":%q,"stripe_customer_id":"cus_1","payment_method_id":"pm_1"}`, customer)
	}
	type want struct {
		line   string
		status int
		code   string
		field  string
	}
	wants := []want{
		{"{" + register("a") + "}", 0, "", ""},
		{`{"command":"register-customer"}`, 400, "invalid_input", "body"},
		{`{"body":{}}`, 400, "invalid_input", "command"},
		{`{"command":"fire-customer","body":{}}`, 404, "unknown_command", ""},
		{`{"command":"start-attempt","body":{}}`, 403, "internal_command", ""},
		{`{"command":"close-run","body":{}}`, 403, "internal_command", ""},
		{`{` + register("b") + `,"keys":"x"}`, 400, "invalid_input", "keys"},
		{`{` + register("b") + `,"command":"x"}`, 400, "invalid_input", "command"},
		{`{` + register("b") + `,"key":""}`, 400, "invalid_input", "key"},
		{`{` + register("b") + `,"key":null}`, 400, "invalid_input", "key"},
		{`{` + register("b") + `,"key":7}`, 400, "invalid_input", "key"},
		{`{` + register("b:c") + `}`, 400, "invalid_input", "customer_id"},
		{`{"command":"register-customer","body":"x"}`, 400, "invalid_input", "body"},
		{`{"command":"register-customer","body":{"customer":"x"}}`, 400, "invalid_input", "customer"},
		{`{` + register("b") + `} {}`, 400, "invalid_input", "line"},
		{`[]`, 400, "invalid_input", "line"},
		{`nonsense`, 400, "invalid_input", "line"},
		{"{" + register("\xff") + "}", 400, "invalid_input", "line"},
		{`{` + register(strings.Repeat("x", 4000)) + `}`, 413, "line_too_long", ""},
		{``, -1, "", ""},
		{`{"command":"charge-billing","body":` + chargeBody("nobody", "2026-11", 5000) + `}`, 404, "unknown_customer", ""},
		{"  {" + register("d") + `,"key":"K"}` + "\r", 0, "", ""},
		{"{" + register("e") + `,"key":"K"}`, 409, "key_reused", ""},
		{`{"command":"charge-billing","body":` + chargeBody("a", "2026-11", 5000) + `}`, 0, "", ""},
	}
	var body []string
	for _, w := range wants {
		body = append(body, w.line)
	}
	lines := i.batch(strings.Join(body, "\n")).lines(t) // the last one has no end
	k := 0
	for n, w := range wants {
		if w.status < 0 {
			continue
		}
		l := lines[k]
		k++
		named := w.field == ""
		for _, f := range l.Errors {
			named = named || f.Field == w.field
		}
		// Which of the two lines with the key K wins is open.
		if w.code == "key_reused" || strings.Contains(w.line, `"K"`) {
			if l.Line != n+1 {
				t.Errorf("line %d is answered by %+v", n+1, l)
			}
			continue
		}
		if l.Line != n+1 || l.Status != w.status || l.Code != w.code || !named {
			t.Errorf("line %d, %.60s, is answered by %+v", n+1, w.line, l)
		}
	}
	if k != len(lines) {
		t.Errorf("%d answers for %d lines", len(lines), k)
	}
	if last := lines[len(lines)-1]; last.Bill["status"] != "requested" {
		t.Errorf("the charge is answered by %+v", last)
	}
	if n := i.events(); n != 3 {
		t.Errorf("%d facts, want 3: two registered, one charge", n)
	}
}

func TestBatchRefusals(t *testing.T) {
	t.Parallel()
	i := start(t)
	if p := i.batch("\n \n").problem(t); p.Status != 400 || !p.names("body") {
		t.Errorf("an empty batch got %+v", p)
	}
	if p := i.batch(customers(1), idempotencyHeader, "K").problem(t); p.Status != 400 || !p.names(idempotencyHeader) {
		t.Errorf("a header key got %+v", p)
	}
	if p := i.do(i.request(http.MethodPost, "/v1/commands:batch", customers(1))).problem(t); p.Status != 415 {
		t.Errorf("another content type got %d", p.Status)
	}
	if p := i.do(i.request(http.MethodPost, "/v1/commands:batch?wait=1s", customers(1), "Content-Type", ndjson)).problem(t); p.Status != 400 || !p.names("wait") {
		t.Errorf("wait got %+v", p)
	}
	if n := i.events(); n != 0 {
		t.Errorf("%d facts came of it", n)
	}
}

// Answers come while lines are still being sent, and a line that is cut off is
// not taken for a whole one.
func TestBatchStreams(t *testing.T) {
	t.Parallel()
	i := start(t, limited(Limits{BodyTime: time.Second}))
	send, feed := io.Pipe()
	r, err := http.NewRequest(http.MethodPost, i.url+"/v1/commands:batch", send)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", ndjson)
	lines := strings.SplitAfter(customers(2), "\n")
	go io.WriteString(feed, lines[0])
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answers := bufio.NewScanner(res.Body)
	if !answers.Scan() || !strings.Contains(answers.Text(), `"line":1`) {
		t.Fatalf("the first line is answered by %q", answers.Text())
	}
	if _, err := io.WriteString(feed, lines[1]+lines[2][:len(lines[2])-10]); err != nil {
		t.Fatal(err)
	}
	if !answers.Scan() || !strings.Contains(answers.Text(), `"line":2`) {
		t.Fatalf("the second line is answered by %q", answers.Text())
	}
	if !strings.Contains(answers.Text(), `"version":2`) {
		t.Fatalf("the second line is answered by %q", answers.Text())
	}
	// Nothing more is sent: the third line never ends.
	if !answers.Scan() || !strings.Contains(answers.Text(), `"body_timeout"`) || !strings.Contains(answers.Text(), `"line":3`) {
		t.Fatalf("the line that stopped is answered by %q, %v\n%s", answers.Text(), answers.Err(), i.logs)
	}
	if answers.Scan() {
		t.Errorf("there is more: %q", answers.Text())
	}
	feed.Close()
	if n := i.events(); n != 2 {
		t.Errorf("%d facts, want 2", n)
	}
}

// A caller who goes away in the middle leaves nothing behind but what it sent.
func TestBatchCallerGoesAway(t *testing.T) {
	t.Parallel()
	i := start(t)
	c := i.raw(t)
	body := customers(50)
	fmt.Fprintf(c, "POST /v1/commands:batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", ndjson, len(body)+1000, body)
	eventually(t, "some of it is recorded", func() bool { return i.events() > 0 })
	c.Close()
	eventually(t, "the request ends", func() bool { return len(i.logs.lines("request")) == 1 })
	// What had been read is recorded; how much that is, the network decides. The
	// same batch again brings the rest, and nothing twice.
	recorded := i.events()
	replayed := 0
	for _, l := range i.batch(body).lines(t) {
		if l.Replayed {
			replayed++
		}
	}
	if n := i.events(); recorded == 0 || replayed != recorded || n != 100 {
		t.Errorf("%d facts were recorded; of the same batch again %d commands were replayed, and there are %d facts, want 100", recorded, replayed, n)
	}
}
