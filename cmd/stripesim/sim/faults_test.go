package sim_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// faultCase is what a fault does to the client, the money and the key: the first
// confirm meets the fault, the same confirm again does not.
type faultCase struct {
	fault sim.Fault
	first func(*testing.T, error)
	moved int  // taken after the first request
	again bool // the repeat is answered from the key's memory
	after func(*testing.T, error)
	total int // taken in the end
}

func faultCases() map[string]faultCase {
	lost := func(t *testing.T, err error) {
		t.Helper()
		var e *stripe.Error
		if err == nil || errors.As(err, &e) {
			t.Errorf("got %v, want a connection that broke", err)
		}
	}
	status := func(status int, code string) func(*testing.T, error) {
		return func(t *testing.T, err error) { t.Helper(); stripeError(t, err, status, code) }
	}
	opaque := func(t *testing.T, err error) { // not in Stripe's shape, so stripe-go cannot tell
		t.Helper()
		var e *stripe.Error
		if err == nil || errors.As(err, &e) {
			t.Errorf("got %v, want an error that is not Stripe's", err)
		}
	}
	none := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	const waits = 50 * time.Millisecond
	return map[string]faultCase{
		"drop_before_read":        {sim.Fault{Kind: sim.DropBeforeRead}, lost, 0, false, none, 1},
		"drop_before_commit":      {sim.Fault{Kind: sim.DropBeforeCommit}, lost, 0, false, none, 1},
		"drop_before_commit, rst": {sim.Fault{Kind: sim.DropBeforeCommit, Close: "rst"}, lost, 0, false, none, 1},
		"commit_then_drop":        {sim.Fault{Kind: sim.CommitThenDrop}, lost, 1, true, none, 1},
		"commit_then_drop, late":  {sim.Fault{Kind: sim.CommitThenDrop, Delay: waits}, lost, 1, true, none, 1},
		"commit_then_drop, rst":   {sim.Fault{Kind: sim.CommitThenDrop, Close: "rst"}, lost, 1, true, none, 1},
		"truncate_body":           {sim.Fault{Kind: sim.TruncateBody}, lost, 1, true, none, 1},
		"truncate_headers":        {sim.Fault{Kind: sim.TruncateHeaders}, lost, 1, true, none, 1},
		"delay_before_commit":     {sim.Fault{Kind: sim.DelayBeforeCommit, Delay: waits}, none, 1, true, none, 1},
		"delay_after_commit":      {sim.Fault{Kind: sim.DelayAfterCommit, Delay: waits}, none, 1, true, none, 1},
		"hang":                    {sim.Fault{Kind: sim.Hang, Delay: waits}, lost, 0, false, none, 1},
		"commit_then_hang":        {sim.Fault{Kind: sim.CommitThenHang, Delay: waits}, lost, 1, true, none, 1},

		"500_before_commit": {sim.Fault{Kind: sim.Error500BeforeCommit}, status(500, ""), 0, true, status(500, ""), 0},
		"500_after_commit":  {sim.Fault{Kind: sim.Error500AfterCommit}, status(500, ""), 1, true, status(500, ""), 1},
		"500_not_stored":    {sim.Fault{Kind: sim.Error500NotStored}, status(500, ""), 0, false, none, 1},

		"429_rate_limit":   {sim.Fault{Kind: sim.RateLimit429}, status(429, "rate_limit"), 0, false, none, 1},
		"429_lock_timeout": {sim.Fault{Kind: sim.LockTimeout429}, status(429, "lock_timeout"), 0, false, none, 1},
		"409":              {sim.Fault{Kind: sim.KeyInUse409}, status(409, "idempotency_key_in_use"), 0, false, none, 1},
		"401":              {sim.Fault{Kind: sim.Error401}, status(401, ""), 0, false, none, 1},
		"403":              {sim.Fault{Kind: sim.Error403}, status(403, ""), 0, false, none, 1},
		"404":              {sim.Fault{Kind: sim.Error404}, status(404, "resource_missing"), 0, false, none, 1},
		"404_stored":       {sim.Fault{Kind: sim.Error404Stored}, status(404, "resource_missing"), 0, true, status(404, "resource_missing"), 0},

		"502":                    {sim.Fault{Kind: sim.Gateway502}, status(502, ""), 0, false, none, 1},
		"502, html":              {sim.Fault{Kind: sim.Gateway502, Body: "html"}, opaque, 0, false, none, 1},
		"503, empty":             {sim.Fault{Kind: sim.Gateway503, Body: "empty"}, opaque, 0, false, none, 1},
		"504":                    {sim.Fault{Kind: sim.Gateway504}, status(504, ""), 0, false, none, 1},
		"502_after_commit, html": {sim.Fault{Kind: sim.Gateway502AfterCommit, Body: "html"}, opaque, 1, true, none, 1},
		"503_after_commit":       {sim.Fault{Kind: sim.Gateway503AfterCommit}, status(503, ""), 1, true, none, 1},
		"504_after_commit":       {sim.Fault{Kind: sim.Gateway504AfterCommit, Body: "empty"}, opaque, 1, true, none, 1},
		"200_empty":              {sim.Fault{Kind: sim.Empty200}, none, 0, false, none, 1}, // stripe-go takes it for a success
		"200_empty_after_commit": {sim.Fault{Kind: sim.Empty200AfterCommit}, none, 1, true, none, 1},
		"200_html":               {sim.Fault{Kind: sim.HTML200}, opaque, 0, false, none, 1},
		"200_html_after_commit":  {sim.Fault{Kind: sim.HTML200AfterCommit}, opaque, 1, true, none, 1},

		"decline": {sim.Fault{Kind: sim.Decline, Code: "stolen_card"}, status(402, "card_declined"), 0, true, status(402, "card_declined"), 0},
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for name, c := range faultCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := start(t, sim.Options{})
			// Every request on a connection of its own: none is resent by the
			// transport on its own account.
			c2 := clientOf(t, s, &http.Transport{DisableKeepAlives: true})
			pi := create(t, c2, "create")
			c.fault.Match.Path = "/v1/payment_intents/*/confirm"
			arm(t, s, c.fault)

			_, err := c2.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
			c.first(t, err)
			equal(t, "taken after the first", taken(s), c.moved)
			_, kept := s.Key("k")
			equal(t, "kept under the key", kept, c.again)

			replays := s.Counters().Replays
			_, err = c2.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
			c.after(t, err)
			equal(t, "replayed", s.Counters().Replays-replays == 1, c.again)
			equal(t, "taken in the end", taken(s), c.total)
			equal(t, "hits", s.Faults()[0].Hits, 1)
		})
	}
}

// Every fault is in the test above, or has a test of its own below.
func TestEveryFaultIsTested(t *testing.T) {
	t.Parallel()
	tested := map[sim.Kind]bool{sim.Redirect307: true, sim.Error500RolledForward: true}
	for _, c := range faultCases() {
		tested[c.fault.Kind] = true
	}
	for _, kind := range sim.Kinds() {
		equal(t, string(kind), tested[kind], true)
	}
}

func TestFaultRedirect(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	arm(t, s, sim.Fault{Kind: sim.Redirect307, Location: "http://127.0.0.1:1/v1/charges"})
	got := post(t, s, "/v1/charges", "k", chargeForm)
	equal(t, "status", got.status, 307)
	equal(t, "location", got.header.Get("Location"), "http://127.0.0.1:1/v1/charges")
	equal(t, "movements", len(s.Ledger()), 0)
}

// A 500 that is rolled forward: the ledger line appears later, once, and the key
// keeps the 500.
func TestFaultRolledForward(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	arm(t, s, sim.Fault{Kind: sim.Error500RolledForward, Delay: 3 * time.Hour, Match: sim.Match{Path: "/v1/payment_intents/*/confirm"}})
	_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
	stripeError(t, err, 500, "")
	s.Advance(2 * time.Hour)
	equal(t, "taken before its time", taken(s), 0)
	due := s.Now().Add(time.Hour)
	s.Advance(2 * time.Hour)
	equal(t, "taken after its time", taken(s), 1)
	if at := s.Ledger()[0].At; at.Sub(due).Abs() > time.Minute {
		t.Errorf("it moved at %v, want %v", at, due)
	}
	equal(t, "key of the movement", s.Ledger()[0].Key, "k")
	_, err = c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
	stripeError(t, err, 500, "")
	got, _ := c.PaymentIntents.Get(pi.ID, nil)
	equal(t, "status", got.Status, stripe.PaymentIntentStatusSucceeded)

	// Paid by another way meanwhile: nothing moves twice.
	pi = create(t, c, "create-2")
	arm(t, s, sim.Fault{Kind: sim.Error500RolledForward, Match: sim.Match{Key: "k2"}})
	_, err = c.PaymentIntents.Confirm(pi.ID, confirmParams("k2", "pm_card_visa"))
	stripeError(t, err, 500, "")
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k3", "pm_card_visa")); err != nil {
		t.Fatal(err)
	}
	s.Advance(25 * time.Hour)
	equal(t, "taken in all", taken(s), 2)

	arm(t, s, sim.Fault{Kind: sim.Error500RolledForward, Match: sim.Match{Key: "legacy"}})
	equal(t, "legacy charge", post(t, s, "/v1/charges", "legacy", chargeForm).status, 500)
	s.Advance(2 * time.Hour)
	equal(t, "taken with the legacy charge", taken(s), 3)
}

// The client gives up before the delay is over; the request executes all the
// same, and meanwhile the key and the intent are busy.
func TestFaultDelayOutlastsTheClient(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{Settings: sim.Settings{LockWait: 20 * time.Millisecond}})
	pi := create(t, c, "create")
	arm(t, s, sim.Fault{Kind: sim.DelayBeforeCommit, Delay: 3 * time.Second, Match: sim.Match{Key: "k"}})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	p := confirmParams("k", "pm_card_visa")
	p.Context = ctx
	_, err := c.PaymentIntents.Confirm(pi.ID, p)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the client's own time-out", err)
	}
	_, err = c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
	stripeError(t, err, 409, "idempotency_key_in_use")
	_, err = c.PaymentIntents.Confirm(pi.ID, confirmParams("other", "pm_card_visa"))
	stripeError(t, err, 429, "lock_timeout")
	got, err := c.PaymentIntents.Get(pi.ID, nil) // reads do not wait for locks
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "status meanwhile", got.Status, stripe.PaymentIntentStatusRequiresPaymentMethod)
	equal(t, "taken meanwhile", taken(s), 0)
	eventually(t, "the request executes after its client has gone", func() bool { return taken(s) == 1 })
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa")); err != nil {
		t.Error(err)
	}
	equal(t, "taken", taken(s), 1)
}

// A request that waits for the lock and gets it in time goes on.
func TestObjectLockIsWaitedFor(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	arm(t, s, sim.Fault{Kind: sim.DelayBeforeCommit, Delay: 300 * time.Millisecond, Match: sim.Match{Key: "slow"}})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("slow", "pm_card_visa")); err != nil {
			t.Error(err)
		}
	})
	atWork(t, s, "slow")
	_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("fast", "pm_card_visa"))
	stripeError(t, err, 400, "payment_intent_unexpected_state")
	wg.Wait()
	equal(t, "taken", taken(s), 1)
}

// On a kept-alive connection Go's transport sends a dropped POST again by itself:
// the fault strikes, the application does not notice, and the key saves it.
func TestFaultDropOnAReusedConnection(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"fin", "rst"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			s, c := start(t, sim.Options{})
			pi := create(t, c, "create")
			if _, err := c.PaymentIntents.Get(pi.ID, nil); err != nil {
				t.Fatal(err)
			}
			arm(t, s, sim.Fault{Kind: sim.CommitThenDrop, Close: end, Match: sim.Match{Key: "k"}})
			p := &stripe.PaymentIntentConfirmParams{PaymentMethod: stripe.String("pm_card_visa"), OffSession: stripe.Bool(true)}
			p.SetIdempotencyKey("k")
			if _, err := c.PaymentIntents.Confirm(pi.ID, p); err != nil {
				t.Errorf("the transport's own repeat: %v", err)
			}
			found, _ := s.RequestsWhere(sim.RequestFilter{Key: "k"})
			equal(t, "requests seen", len(found), 2)
			equal(t, "executed", found[0].Executed, true)
			equal(t, "dropped", found[0].Status, 0)
			equal(t, "replayed", found[1].Replayed, true)
			equal(t, "taken", taken(s), 1)
		})
	}
}

// FIN ends the stream, RST breaks it.
func TestDropsOnTheWire(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	u, _ := url.Parse(s.APIURL)
	form := chargeForm + "&description=" + strings.Repeat("x", 64<<10) // more than a server buffers
	for end, want := range map[string]error{"fin": io.EOF, "rst": syscall.ECONNRESET} {
		for _, kind := range []sim.Kind{sim.DropBeforeRead, sim.DropBeforeCommit, sim.CommitThenDrop} {
			arm(t, s, sim.Fault{Kind: kind, Close: end})
			conn, err := net.Dial("tcp", u.Host)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, err = io.WriteString(conn, "POST /v1/charges HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk_test_1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: "+strconv.Itoa(len(form))+"\r\n\r\n"+form)
			if err != nil {
				t.Fatal(err)
			}
			conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			n, err := bufio.NewReader(conn).Read(make([]byte, 1))
			if n != 0 || !errors.Is(err, want) {
				t.Errorf("%s with %s: read %d bytes, %v; want %v", kind, end, n, err, want)
			}
		}
	}
	equal(t, "movements", len(s.Ledger()), 2)
}

// Which requests a scripted fault meets.
func TestFaultMatching(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	hit := func(f sim.Fault, do func() error) bool {
		t.Helper()
		f.Kind = sim.Error500NotStored
		arm(t, s, f)
		defer s.ClearFaults("")
		return do() != nil
	}
	n := 0
	newIntent := func() error {
		n++
		_, err := c.PaymentIntents.New(createParams(keyN(n)))
		return err
	}
	pi := create(t, c, "create")
	getIntent := func() error { _, err := c.PaymentIntents.Get(pi.ID, nil); return err }
	equal(t, "any", hit(sim.Fault{}, newIntent), true)
	equal(t, "method", hit(sim.Fault{Match: sim.Match{Method: "GET"}}, newIntent), false)
	equal(t, "path", hit(sim.Fault{Match: sim.Match{Path: "/v1/payment_intents"}}, newIntent), true)
	equal(t, "other path", hit(sim.Fault{Match: sim.Match{Path: "/v1/payment_intents/*"}}, newIntent), false)
	equal(t, "path with an id", hit(sim.Fault{Match: sim.Match{Path: "/v1/payment_intents/*"}}, getIntent), true)
	equal(t, "customer", hit(sim.Fault{Match: sim.Match{Customer: "cus_A"}}, newIntent), true)
	equal(t, "other customer", hit(sim.Fault{Match: sim.Match{Customer: "cus_B"}}, newIntent), false)
	equal(t, "customer of the intent", hit(sim.Fault{Match: sim.Match{Customer: "cus_A"}}, getIntent), true)
	equal(t, "key", hit(sim.Fault{Match: sim.Match{Key: keyN(n + 1)}}, newIntent), true)
	equal(t, "other key", hit(sim.Fault{Match: sim.Match{Key: "other"}}, newIntent), false)

	arm(t, s, sim.Fault{Kind: sim.Error500NotStored, Match: sim.Match{Path: "/v1/payment_intents", Nth: 2}, Times: 2})
	var got []bool
	for range 5 {
		got = append(got, newIntent() != nil)
	}
	for i, want := range []bool{false, true, true, false, false} {
		equal(t, keyN(i), got[i], want)
	}
	s.ClearFaults("")
	arm(t, s, sim.Fault{Kind: sim.Error500NotStored, Times: -1, For: 2 * time.Second})
	if newIntent() == nil {
		t.Error("a fault for a time does not strike within it")
	}
	eventually(t, "a fault for a time is over", func() bool { return newIntent() == nil })
}

// Three commit_then_drop in a row lose the answer and its repeats.
func TestFaultStrikesReplays(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	c := clientOf(t, s, &http.Transport{DisableKeepAlives: true})
	pi := create(t, c, "create")
	arm(t, s, sim.Fault{Kind: sim.CommitThenDrop, Times: 3, Match: sim.Match{Path: "/v1/payment_intents/*/confirm"}})
	for n := 1; n <= 4; n++ {
		_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
		equal(t, keyN(n)+" answered", err == nil, n == 4)
	}
	equal(t, "taken", taken(s), 1)
	state, _ := s.Key("k")
	equal(t, "executions", state.Executions, 1)
	equal(t, "replays", state.Replays, 3)
}

func TestFaultHeaders(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	arm(t, s, sim.Fault{Kind: sim.LockTimeout429, ShouldRetry: stripe.Bool(false), RetryAfter: 7})
	got := post(t, s, "/v1/charges", "k", chargeForm)
	equal(t, "status", got.status, 429)
	equal(t, "should retry", got.header.Get("Stripe-Should-Retry"), "false")
	equal(t, "retry after", got.header.Get("Retry-After"), "7")
	arm(t, s, sim.Fault{Kind: sim.RateLimit429})
	got = post(t, s, "/v1/charges", "k", chargeForm)
	equal(t, "should retry by default", got.header.Get("Stripe-Should-Retry"), "")
}

// Random faults hang on seed and key alone, so that a run can be repeated.
func TestRandomFaultsRepeat(t *testing.T) {
	t.Parallel()
	run := func(seed uint64, reverse bool) map[string]sim.Kind {
		s, _ := start(t, sim.Options{})
		arm(t, s, sim.Fault{Seed: seed, Rate: 0.3, Kinds: []sim.Kind{sim.CommitThenDrop, sim.Error500NotStored, sim.DropBeforeRead}})
		met := make(map[string]sim.Kind)
		c := clientOf(t, s, &http.Transport{DisableKeepAlives: true})
		for i := range 60 {
			n := i
			if reverse {
				n = 59 - i
			}
			c.PaymentIntents.New(createParams(keyN(n))) //nolint:errcheck // some are meant to fail
		}
		for _, r := range s.Requests() {
			met[r.Key] = r.Fault
		}
		return met
	}
	first := run(7, false)
	struck := 0
	for key, kind := range run(7, true) {
		equal(t, key, kind, first[key])
		if kind != "" {
			struck++
		}
	}
	if struck < 5 || struck > 40 {
		t.Errorf("%d of 60 struck at a rate of 0.3", struck)
	}
	other := run(8, false)
	same := 0
	for key, kind := range first {
		if other[key] == kind {
			same++
		}
	}
	if same == len(first) {
		t.Error("another seed gave the same faults")
	}
}

func TestBadFaults(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	for name, f := range map[string]sim.Fault{
		"unknown":             {Kind: "explode"},
		"nothing":             {},
		"delay without time":  {Kind: sim.DelayBeforeCommit},
		"negative delay":      {Kind: sim.CommitThenDrop, Delay: -time.Second},
		"decline, no code":    {Kind: sim.Decline},
		"bad code":            {Kind: sim.Decline, Code: "Bad Code"},
		"customer, no body":   {Kind: sim.DropBeforeRead, Match: sim.Match{Customer: "cus_A"}},
		"no location":         {Kind: sim.Redirect307},
		"bad body":            {Kind: sim.Gateway502, Body: "xml"},
		"bad close":           {Kind: sim.CommitThenDrop, Close: "slam"},
		"bad pattern":         {Kind: sim.CommitThenDrop, Match: sim.Match{Path: "/v1/["}},
		"rate over one":       {Rate: 2, Kinds: []sim.Kind{sim.CommitThenDrop}},
		"rate without faults": {Rate: 0.5},
		"seed alone":          {Seed: 1, Kind: sim.CommitThenDrop},
		"both":                {Kind: sim.Hang, Rate: 0.5, Kinds: []sim.Kind{sim.Hang}},
		"negative times":      {Kind: sim.Hang, Times: -2},
	} {
		if _, err := s.AddFault(f); err == nil {
			t.Errorf("%s: armed", name)
		}
	}
	_, err := s.AddFault(sim.Fault{Kind: "explode", Close: "slam"})
	if err == nil || !strings.Contains(err.Error(), "explode") || !strings.Contains(err.Error(), "close") {
		t.Errorf("not every reason is named: %v", err)
	}
	equal(t, "armed", len(s.Faults()), 0)
}

// crowd makes twenty charges at a stand-in that allows one a second, and says how
// many were too many.
func crowd(t *testing.T, s *sim.Server) (limited int) {
	t.Helper()
	for n := range 20 {
		if post(t, s, "/v1/charges", keyN(n), chargeForm).status == 429 {
			limited++
		}
	}
	if limited == 0 || limited == 20 {
		t.Errorf("%d of 20 limited with one a second allowed", limited)
	}
	return limited
}

func TestRateLimiter(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{Settings: sim.Settings{RateLimit: 1}})
	limited := crowd(t, s)
	equal(t, "keys kept", s.Counters().KeysHeld, int64(20-limited))
}

// Each endpoint has a bucket of its own beside the one of all.
func TestEndpointLimiter(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{Settings: sim.Settings{EndpointRate: 1}})
	crowd(t, s)
	if r := post(t, s, "/v1/customers", "k", "email=a%40b.example"); r.status == 429 {
		t.Error("another endpoint was limited too")
	}
}

// A reset under a request's feet: it is dropped and leaves nothing in the new
// world.
func TestResetDropsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	c := clientOf(t, s, &http.Transport{DisableKeepAlives: true})
	arm(t, s, sim.Fault{Kind: sim.DelayBeforeCommit, Delay: 2 * time.Second})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Charges.New(chargeParams("k")); err == nil {
			t.Error("answered across a reset")
		}
	})
	atWork(t, s, "k")
	if err := s.Reset(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	equal(t, "movements", len(s.Ledger()), 0)
	_, kept := s.Key("k")
	equal(t, "kept under the key", kept, false)
}
