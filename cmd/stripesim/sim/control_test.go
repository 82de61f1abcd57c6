package sim_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// control sends a request to the control API and decodes the answer into into.
func control(t testing.TB, s *sim.Server, method, path, body string, into any) int {
	t.Helper()
	r, err := http.NewRequest(method, s.ControlURL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	got := send(t, r)
	if into != nil {
		if err := json.Unmarshal([]byte(got.body), into); err != nil {
			t.Fatalf("%s %s: %v in %s", method, path, err, got.body)
		}
	}
	return got.status
}

func TestControlClock(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	var clock struct {
		Now    time.Time `json:"now"`
		Offset string    `json:"offset"`
	}
	control(t, s, "GET", "/control/clock", "", &clock)
	if d := time.Since(clock.Now).Abs(); d > time.Second || clock.Offset != "0s" {
		t.Errorf("a fresh clock is off by %v, offset %s", d, clock.Offset)
	}
	control(t, s, "POST", "/control/clock", `{"advance":"25h"}`, &clock)
	equal(t, "offset", clock.Offset, "25h0m0s")
	control(t, s, "POST", "/control/clock", `{"set":"2026-12-01T00:00:00Z"}`, &clock)
	if d := clock.Now.Sub(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)); d < 0 || d > time.Second {
		t.Errorf("set to December, it says %v", clock.Now)
	}
	before := clock.Now
	eventually(t, "the clock ticks", func() bool {
		control(t, s, "GET", "/control/clock", "", &clock)
		return clock.Now.After(before)
	})
	for _, body := range []string{`{}`, `{"advance":"soon"}`, `{"advance":"1h","set":"2026-12-01T00:00:00Z"}`, `{"forward":"1h"}`, `{"advance":"1h"} {}`, `nonsense`} {
		equal(t, body, control(t, s, "POST", "/control/clock", body, nil), 400)
	}
}

func TestControlFaults(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	var armed struct {
		Faults []struct {
			ID    string   `json:"id"`
			Fault string   `json:"fault"`
			Delay string   `json:"delay"`
			Times int      `json:"times"`
			Seed  uint64   `json:"seed"`
			Hits  int      `json:"hits"`
			Kinds []string `json:"faults"`
		} `json:"faults"`
	}
	const scripted = `{"match": {"path": "/v1/charges", "customer": "cus_A", "key": "k", "nth": 1}, "fault": "delay_after_commit", "times": 3, "delay": "2ms"}`
	equal(t, "arm", control(t, s, "POST", "/control/faults", scripted, &armed), 200)
	equal(t, "delay", armed.Faults[0].Delay, "2ms")
	post(t, s, "/v1/charges", "k", chargeForm)
	control(t, s, "GET", "/control/faults", "", &armed)
	equal(t, "hits", armed.Faults[0].Hits, 1)
	equal(t, "counted", s.Counters().Faults[sim.DelayAfterCommit], 1)
	control(t, s, "POST", "/control/faults", `[{"rate":0.1,"faults":["commit_then_drop","drop_before_commit"]},{"fault":"409"}]`, &armed)
	if len(armed.Faults) != 2 || armed.Faults[0].Seed == 0 {
		t.Errorf("a list of faults, one random without a seed: %+v", armed)
	}
	equal(t, "delete", control(t, s, "DELETE", "/control/faults/"+armed.Faults[1].ID, "", nil), 200)
	equal(t, "delete again", control(t, s, "DELETE", "/control/faults/"+armed.Faults[1].ID, "", nil), 404)
	equal(t, "left", len(s.Faults()), 2)
	var bad struct{ Error struct{ Message string } }
	equal(t, "bad", control(t, s, "POST", "/control/faults", `[{"fault":"409"},{"fault":"explode","close":"slam"}]`, &bad), 400)
	if !strings.Contains(bad.Error.Message, "explode") || !strings.Contains(bad.Error.Message, "close") {
		t.Errorf("not every reason is named: %s", bad.Error.Message)
	}
	equal(t, "unknown field", control(t, s, "POST", "/control/faults", `{"fault":"409","nth":2}`, nil), 400)
	equal(t, "left after a bad list", len(s.Faults()), 2)
	equal(t, "delete all", control(t, s, "DELETE", "/control/faults", "", nil), 200)
	equal(t, "left", len(s.Faults()), 0)
}

func TestControlBooks(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa")); err != nil {
		t.Fatal(err)
	}
	post(t, s, "/v1/charges", "-", "amount=700&currency=jpy&customer=cus_B")

	var ledger struct{ Movements []sim.Movement }
	control(t, s, "GET", "/control/ledger", "", &ledger)
	equal(t, "movements", len(ledger.Movements), 2)
	m := ledger.Movements[0]
	if m.Key != "k" || m.Metadata["customer_id"] != "A" || m.Request == "" || m.Fingerprint == "" || m.At.IsZero() {
		t.Errorf("a movement that does not tell all: %+v", m)
	}
	control(t, s, "GET", "/control/ledger?after="+m.Charge, "", &ledger)
	equal(t, "after the first", len(ledger.Movements), 1)
	equal(t, "currency", ledger.Movements[0].Currency, "jpy")
	control(t, s, "GET", "/control/ledger?customer=cus_A&status=succeeded&payment_intent="+pi.ID+"&key=k&limit=5", "", &ledger)
	equal(t, "filtered", len(ledger.Movements), 1)
	control(t, s, "GET", "/control/ledger?status=failed", "", &ledger)
	equal(t, "failed", len(ledger.Movements), 0)
	equal(t, "unknown parameter", control(t, s, "GET", "/control/ledger?period=2026-11", "", nil), 400)

	var requests struct{ Requests []sim.Request }
	control(t, s, "GET", "/control/requests?method=POST&path=/v1/payment_intents/*/confirm&customer=cus_A", "", &requests)
	equal(t, "requests", len(requests.Requests), 1)
	r := requests.Requests[0]
	if r.Key != "k" || r.Status != 200 || r.Fingerprint != m.Fingerprint || r.ID != m.Request || !r.Executed || !r.Finished {
		t.Errorf("a request that does not tell all: %+v", r)
	}
	control(t, s, "GET", "/control/requests?limit=1&after=1", "", &requests)
	equal(t, "seq of the second", requests.Requests[0].Seq, 2)
	equal(t, "bad limit", control(t, s, "GET", "/control/requests?limit=0", "", nil), 400)
	equal(t, "bad pattern", control(t, s, "GET", "/control/requests?path=[", "", nil), 400)

	var counters sim.Counters
	control(t, s, "GET", "/control/counters", "", &counters)
	equal(t, "confirms", counters.Confirms, 1)
	equal(t, "unkeyed", counters.UnkeyedPOSTs, 1)
	equal(t, "by route", counters.Requests["POST /v1/payment_intents/*/confirm"], 1)

	var state sim.KeyState
	equal(t, "key", control(t, s, "GET", "/control/keys?key=k", "", &state), 200)
	equal(t, "executions", state.Executions, 1)
	equal(t, "no such key", control(t, s, "GET", "/control/keys?key=x", "", nil), 404)
	var forgotten struct{ Forgotten int }
	control(t, s, "DELETE", "/control/keys", "", &forgotten)
	equal(t, "forgotten", forgotten.Forgotten, 2)
}

func TestControlSwitches(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	equal(t, "settings", control(t, s, "POST", "/control/settings", `{"ignore_keys":true,"search_lag":"2h","prune":"late","confirm_limit":3}`, nil), 200)
	set := s.Settings()
	if !set.IgnoreKeys || set.SearchLag != 2*time.Hour || set.Prune != sim.PruneLate || set.ConfirmLimit != 3 || set.KeyRetention != 24*time.Hour {
		t.Errorf("settings are %+v", set)
	}
	equal(t, "search without lag", control(t, s, "POST", "/control/settings", `{"search_lag":"0s"}`, nil), 200)
	equal(t, "search lag", s.Settings().SearchLag, 0)
	for _, body := range []string{`{"prune":"never"}`, `{"ignore":true}`, `{"key_retention":"-1h"}`} {
		equal(t, body, control(t, s, "POST", "/control/settings", body, nil), 400)
	}
	equal(t, "customer", control(t, s, "PUT", "/control/customers/cus_A", `{"card":"insufficient_funds"}`, nil), 200)
	pi := create(t, c, "create")
	_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
	stripeError(t, err, 402, "card_declined")
	equal(t, "bad card", control(t, s, "PUT", "/control/customers/cus_A", `{"card":"BAD"}`, nil), 400)
	var m sim.Movement
	equal(t, "plant", control(t, s, "POST", "/control/charges", `{"customer":"cus_C","amount":900,"currency":"eur","metadata":{"billing_key":"b"},"created":1793491200}`, &m), 200)
	equal(t, "planted at", m.At, time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC))
	equal(t, "plant too little", control(t, s, "POST", "/control/charges", `{"customer":"cus_C","amount":1,"currency":"eur"}`, nil), 400)
	equal(t, "authenticate nobody", control(t, s, "POST", "/control/intents/pi_none/authenticate", `{"result":"succeed"}`, nil), 404)
	equal(t, "no such route", control(t, s, "GET", "/control/nothing", "", nil), 404)
	equal(t, "reset", control(t, s, "POST", "/control/reset", "", nil), 200)
	equal(t, "movements", len(s.Ledger()), 0)
	equal(t, "ignore keys after a reset", s.Settings().IgnoreKeys, false)
}

func TestControlToken(t *testing.T) {
	t.Parallel()
	s, err := sim.New(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server, err := s.Listen("127.0.0.1:0", "127.0.0.1:0", "secret")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for header, want := range map[string]int{"": 401, "Bearer ": 401, "Bearer wrong": 401, "secret": 401, "Bearer secret": 200} {
		r, _ := http.NewRequest("GET", server.ControlURL+"/control/clock", nil)
		r.Header.Set("Authorization", header)
		equal(t, header, send(t, r).status, want)
	}
	open, err := sim.New(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if server, err := open.Listen("127.0.0.1:0", "0.0.0.0:0", ""); err == nil {
		server.Close()
		t.Error("control is open to everybody")
	}
}

// The API listener knows no control routes.
func TestControlIsNotOnTheAPI(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	equal(t, "control on the API", get(t, s, "/control/ledger").status, 404)
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	_, err := sim.New(sim.Options{Settings: sim.Settings{KeyRetention: -1, Prune: "never", ConfirmLimit: -1}})
	if err == nil || strings.Count(err.Error(), "\n") < 2 {
		t.Errorf("three faults, reported as: %v", err)
	}
}

// The request log is bounded and keeps the newest.
func TestRequestLogIsBounded(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{RequestLog: 5})
	for range 13 {
		get(t, s, "/v1/account")
	}
	all := s.Requests()
	equal(t, "remembered", len(all), 5)
	for i, r := range all {
		equal(t, "seq", r.Seq, int64(9+i))
	}
	none, _ := start(t, sim.Options{RequestLog: -1})
	get(t, none, "/v1/account")
	equal(t, "remembered by one without a log", len(none.Requests()), 0)
}
