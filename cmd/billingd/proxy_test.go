package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/stripesim/sim"
)

func names(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("c%03d", i)
	}
	return ids
}

// TestC069_CapReachedHalfWay: a hundred dues of 10.00 and a cap of 600.00 that an
// operator has set. Sixty are charged and forty held; nobody is declined; one
// alarm. After a raise and a resumption a hundred are charged. Everything came by
// the proxy, and each bill's story shows what it said.
func TestC069_CapReachedHalfWay(t *testing.T) {
	h, p := newProxiedHouse(t)
	capped(t, h, p, 100, 60, 1)
}

// Two replicas have one key's worth of room, and raise one alarm.
func TestTwoReplicasHaveOneKeysWorthOfRoom(t *testing.T) {
	h, p := newProxiedHouse(t)
	capped(t, h, p, 30, 11, 2)
}

func capped(t *testing.T, h *house, p *spendproxy, dues, room, replicas int) {
	said := &heard{}
	tokens, err := access.Parse("operator:read+dispatch+operate:" + hash("operator") + ",reader:read+dispatch:" + hash("reader"))
	if err != nil {
		t.Fatal(err)
	}
	var all []*replica
	for range replicas {
		all = append(all, h.startLogging(func(c *config.Config) {
			p.behind(c)
			c.Tokens = tokens
		}, said))
	}
	r := all[0]
	r.token = "reader"
	ids := names(dues)
	r.subscribe(ids...)
	key := p.run("2026-11", dues)
	p.set(key, int64(room)*1000)
	h.november()
	awaitFor(t, 2*time.Minute, "the rest is held", func() bool {
		n := r.tally()
		return n["paid"] == room && n["held"] == dues-room
	}, func() string { return r.read("/v1/runs/2026-11") }, said.errors)

	var health struct {
		Status   string
		Degraded []struct {
			Run, Code, Reason string
			Left              int64 `json:"left_minor"`
			Cap               int64 `json:"cap_minor"`
			Asked             int64 `json:"asked_minor"`
			Held              []struct{ Bills, AmountMinor int64 }
		}
	}
	awaitFor(t, time.Minute, "health is degraded, with figures", func() bool {
		if err := json.Unmarshal([]byte(r.read("/healthz")), &health); err != nil {
			t.Fatal(err)
		}
		return health.Status == "degraded" && len(health.Degraded) == 1 && health.Degraded[0].Held[0].Bills == int64(dues-room)
	}, func() string { return r.read("/healthz") })
	if d := health.Degraded[0]; d.Run != "2026-11" || d.Code != "spend_cap_exceeded" || d.Left != 0 || d.Cap != int64(room)*1000 || d.Asked != 1000 {
		t.Errorf("health says %+v", d)
	}
	if run := r.read("/v1/runs/2026-11"); !strings.Contains(run, `"paused":true`) || !strings.Contains(run, key) || !strings.Contains(run, "spend_cap_exceeded") {
		t.Errorf("the run shows %s", run)
	}
	if n := said.count(); n != 1 {
		t.Errorf("%d alarms: %s", n, said.errors())
	}
	for name, want := range map[string]int{"run.paused.v1": 1, "charge.declined.v1": 0, "charge.rejected.v1": 0, "customer.billed.v1": room} {
		if got := strings.Count(r.read("/v1/events?limit=500&type="+name), `"`+name+`"`); got != want {
			t.Errorf("%d facts %s, want %d", got, name, want)
		}
	}
	if n, _ := h.charged(); n != room {
		t.Errorf("the stand-in has %d charges, want %d", n, room)
	}

	if status := r.dispatch("resume-run", "k0", `{"billing_period":"2026-11"}`); status != http.StatusForbidden {
		t.Errorf("a caller who may not operate resumes a run: %d", status)
	}
	p.set(key, int64(dues)*1100)
	r.token = "operator"
	if status := r.dispatch("resume-run", "k1", `{"billing_period":"2026-11","reason":"the cap was raised"}`); status != http.StatusOK {
		t.Errorf("resume: %d", status)
	}
	awaitFor(t, 2*time.Minute, "all are charged", func() bool { return r.tally()["paid"] == dues }, func() string { return r.read("/v1/runs/2026-11") }, said.errors)
	if n, doubled := h.charged(); n != dues || doubled {
		t.Errorf("the stand-in has %d charges, want %d; one doubled: %t", n, dues, doubled)
	}
	if n := said.count(); n != 1 {
		t.Errorf("%d alarms in the end: %s", n, said.errors())
	}
	awaitFor(t, time.Minute, "health is well", func() bool { return strings.Contains(r.read("/healthz"), `"status":"ok"`) })
	p.nothingWentRound(h.stripe)
	var books struct {
		Currencies []struct {
			Minor int64 `json:"settled_minor"`
			Held  int64 `json:"held_minor"`
		}
	}
	p.ask(http.MethodGet, "books?run=2026-11", nil, &books)
	if len(books.Currencies) != 1 || books.Currencies[0].Minor != int64(dues)*1000 || books.Currencies[0].Held != 0 {
		t.Errorf("the proxy's books are %+v", books)
	}

	told := r.read("/v1/customers/" + ids[0] + "/periods/2026-11")
	for _, part := range []string{`"proxy":`, `/confirm`, `"reservation":"settled"`, `"verdict":"allow"`, key} {
		if !strings.Contains(told, part) {
			t.Errorf("the story does not show %s: %s", part, told)
		}
	}
}

// The proxy's store is away in the middle of a run: nothing is charged past it,
// and nothing is lost. The story is told without the proxy meanwhile, and says so.
func TestTheProxysStoreIsAwayInTheMiddleOfARun(t *testing.T) {
	h, p := newProxiedHouse(t)
	r := h.start(func(c *config.Config) { p.behind(c); c.Concurrency = 4 })
	const dues = 60
	r.subscribe(names(dues)...)
	p.run("2026-11", dues)
	slow(t, h)
	h.november()
	awaitFor(t, 2*time.Minute, "some are charged", func() bool { n, _ := h.charged(); return n >= 10 })
	p.db.Pause()
	p.db.CutAll()
	// What had been let through before has ended; from here on the stand-in hears
	// of no money.
	awaitFor(t, time.Minute, "no more comes through", func() bool {
		before := posts(h)
		time.Sleep(300 * time.Millisecond) // a charge takes a tenth of it
		return posts(h) == before
	})
	if n, _ := h.charged(); n == dues {
		t.Fatal("the run was over before the store was away")
	}
	told := r.read("/v1/customers/c000/periods/2026-11")
	if !strings.Contains(told, `"unavailable":`) || !strings.Contains(told, `"facts":`) {
		t.Errorf("the story is %s", told)
	}
	p.db.Resume()
	awaitFor(t, 3*time.Minute, "all are charged", func() bool { return r.tally()["paid"] == dues }, func() string { return r.read("/v1/runs/2026-11") })
	if n, doubled := h.charged(); n != dues || doubled {
		t.Errorf("the stand-in has %d charges, want %d; one doubled: %t", n, dues, doubled)
	}
	p.nothingWentRound(h.stripe)
}

// slow makes each charge take a while, so that a test finds a run in its middle.
func slow(t *testing.T, h *house) {
	t.Helper()
	if _, err := h.stripe.AddFault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/confirm"}, Kind: sim.DelayAfterCommit, Delay: 30 * time.Millisecond, Times: -1}); err != nil {
		t.Fatal(err)
	}
}

func posts(h *house) (n int) {
	for _, r := range h.stripe.Requests() {
		if r.Method == http.MethodPost {
			n++
		}
	}
	return n
}

// A run's key is rotated twice without grace while the run goes on: each process
// gets itself a fresh secret, and no bill is held, declined or left behind.
func TestARunsKeyIsRotatedUnderARunningService(t *testing.T) {
	h, p := newProxiedHouse(t)
	r := h.start(func(c *config.Config) { p.behind(c); c.Concurrency = 4 })
	const dues = 60
	r.subscribe(names(dues)...)
	key := p.run("2026-11", dues)
	slow(t, h)
	h.november()
	for _, charged := range []int{5, 25} {
		awaitFor(t, 2*time.Minute, "some are charged", func() bool { n, _ := h.charged(); return n >= charged })
		p.ask(http.MethodPost, "vault-keys/"+key+"/rotate", map[string]any{"grace": "0s"}, nil)
	}
	awaitFor(t, 2*time.Minute, "all are charged", func() bool { return r.tally()["paid"] == dues }, func() string { return r.read("/v1/runs/2026-11") })
	if n, doubled := h.charged(); n != dues || doubled {
		t.Errorf("the stand-in has %d charges, want %d; one doubled: %t", n, dues, doubled)
	}
	for _, name := range []string{"charge.held.v1", "charge.declined.v1", "run.paused.v1"} {
		if events := r.read("/v1/events?type=" + name); strings.Contains(events, `"`+name+`"`) {
			t.Errorf("there is a fact %s: %s", name, events)
		}
	}
	if refused := p.count(`SELECT count(*) FROM spendproxy.audit WHERE code = 'vault_key_invalid'`); refused == 0 {
		t.Error("no call met the rotation: nothing was tested")
	}

	// Revoked, the key holds the next bill, and the run waits for somebody.
	p.ask(http.MethodPost, "vault-keys/"+key+"/revoke", map[string]any{"reason": "as a test has it"}, nil)
	r.register("late")
	if a, err := r.post(t.Context(), "/v1/commands/charge-billing", chargeBody("late")); err != nil || a.Status >= 300 {
		t.Fatalf("charge: %+v, %v", a, err)
	}
	awaitFor(t, time.Minute, "health is degraded", func() bool { return strings.Contains(r.read("/healthz"), `"degraded"`) }, func() string { return r.read("/v1/runs/2026-11") })
	if n, _ := h.charged(); n != dues {
		t.Errorf("the stand-in has %d charges, want %d", n, dues)
	}
}

// heard counts the log's lines of level ERROR.
type heard struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (l *heard) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Contains(p, []byte("level=ERROR")) {
		l.lines.Write(p)
	}
	return len(p), nil
}

func (l *heard) errors() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

func (l *heard) count() int { return strings.Count(l.errors(), "level=ERROR") }

func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// dispatch sends a command under a key and gives the status.
func (r *replica) dispatch(name, key, body string) int {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+"/v1/commands/"+name, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	r.present(req)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}
