package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// What the wire can carry beside plain requests: each is read in one way only, or
// refused, and Stripe sees one request for each that was answered with 200.
func TestOddRequestsOnTheWire(t *testing.T) {
	t.Parallel()
	stripe := newUpstream(t, says(200, aCharge))
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(1_000_000)
	line := func(version string) string { return "POST /v1/charges " + version + "\r\nHost: x\r\n" + head(key) }
	sized := fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(chargeForm), chargeForm)
	chunked := fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(chargeForm), chargeForm)
	behind := "POST /v1/charges HTTP/1.1\r\nHost: x\r\n" + head(key) + sized
	const get = "GET /v1/charges/ch_1 HTTP/1.1\r\nHost: x\r\n"
	for _, test := range []struct {
		what, text string
		want       []int // of as many requests as there are
		reach      int   // of them reach Stripe
	}{
		{"HTTP/1.0", line("HTTP/1.0") + sized, []int{200}, 1},
		{"HTTP/1.0, chunked", line("HTTP/1.0") + chunked, []int{400}, 0},
		{"HTTP/2.0 in the request line", line("HTTP/2.0") + sized, []int{505}, 0},
		{"no version", "POST /v1/charges\r\nHost: x\r\n" + head(key) + sized, []int{400}, 0},
		{"chunked", line("HTTP/1.1") + chunked, []int{200}, 1},
		{"pipelined", line("HTTP/1.1") + sized + line("HTTP/1.1") + sized + line("HTTP/1.1") + sized, []int{200, 200, 200}, 3},
		{"pipelined behind a refusal", get + "Authorization: Bearer vk_none\r\n\r\n" + line("HTTP/1.1") + sized, []int{401, 200}, 1},
		{"a length and chunks: the chunks count", line("HTTP/1.1") + "Content-Length: 4\r\n" + chunked + behind, []int{200, 200}, 2},
		{"two lengths", line("HTTP/1.1") + "Content-Length: 4\r\n" + sized, []int{400}, 0},
		{"chunked twice", line("HTTP/1.1") + "Transfer-Encoding: chunked\r\n" + chunked, []int{501}, 0},
		{"another transfer encoding", line("HTTP/1.1") + "Transfer-Encoding: xchunked\r\n\r\n" + behind, []int{501}, 0},
		{"a negative length", line("HTTP/1.1") + "Content-Length: -1\r\n\r\n", []int{400}, 0},
		{"two Hosts", line("HTTP/1.1") + "Host: y\r\n" + sized, []int{400}, 0},
		{"no Host", strings.Replace(line("HTTP/1.1"), "Host: x\r\n", "", 1) + sized, []int{400}, 0},
		{"a blank before the colon", strings.Replace(line("HTTP/1.1"), "Authorization:", "Authorization :", 1) + sized, []int{400}, 0},
		{"two Authorizations", line("HTTP/1.1") + "Authorization: Bearer " + key + "\r\n" + sized, []int{401}, 0},
		{"two keys", line("HTTP/1.1") + "Idempotency-Key: " + uuid.NewString() + "\r\n" + sized, []int{400}, 0},
		{"two types", line("HTTP/1.1") + "Content-Type: application/x-www-form-urlencoded\r\n" + sized, []int{415}, 0},
		{"no key", strings.Replace(line("HTTP/1.1"), "Idempotency-Key", "X-Key", 1) + sized, []int{400}, 0},
		{"a header of 20 KiB", line("HTTP/1.1") + "X-Big: " + strings.Repeat("x", 20<<10) + "\r\n" + sized, []int{431}, 0},
		{"ten thousand headers", line("HTTP/1.1") + strings.Repeat("A: b\r\n", 10_000) + sized, []int{431}, 0},
		{"a target of 20 KiB", "POST /v1/charges?" + strings.Repeat("x", 20<<10) + " HTTP/1.1\r\nHost: x\r\n" + head(key) + sized, []int{431}, 0},
		{"a query", strings.Replace(line("HTTP/1.1"), "/v1/charges", "/v1/charges?amount=1", 1) + sized, []int{400}, 0},
		{"a bare question mark", strings.Replace(line("HTTP/1.1"), "/v1/charges", "/v1/charges?", 1) + sized, []int{400}, 0},
		{"an unknown expectation", line("HTTP/1.1") + "Expect: 200-maybe\r\n" + sized, []int{417}, 0},
		{"an upgrade", line("HTTP/1.1") + "Connection: Upgrade\r\nUpgrade: websocket\r\n" + sized, []int{200}, 1},
		{"HTTP/2 with prior knowledge", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{401}, 0},
		{"a trailer", line("HTTP/1.1") + "Trailer: Amount\r\n" + strings.Replace(chunked, "0\r\n\r\n", "0\r\nAmount: 1\r\n\r\n", 1), []int{200}, 1},
	} {
		before := len(stripe.arrivals())
		// Behind them comes the last request of the connection: what is answered
		// beside it was smuggled.
		got, bodies := r.raw(test.text+"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", len(test.want)+2)
		if !slices.Equal(got, test.want) && !slices.Equal(got, append(slices.Clone(test.want), 200)) || len(stripe.arrivals())-before != test.reach {
			t.Errorf("%s: %v, want %v; %d reached Stripe: %v", test.what, got, test.want, len(stripe.arrivals())-before, bodies)
		}
		for n, status := range got {
			if status == 200 {
				continue
			}
			var said struct {
				Error struct{ Code, Message, Type string }
			}
			if err := json.Unmarshal([]byte(bodies[n]), &said); err != nil || said.Error.Code == "" || said.Error.Message == "" || said.Error.Type == "" {
				t.Errorf("%s: %d is no error in Stripe's shape: %s", test.what, status, bodies[n])
			}
		}
	}
	for _, seen := range stripe.arrivals() {
		form, err := url.ParseQuery(seen.body)
		if err != nil || form.Get("amount") != "1000" || len(form["amount"]) != 1 || seen.target != "/v1/charges" {
			t.Errorf("Stripe was asked for %s %s", seen.target, seen.body)
		}
	}
}
