package sagas_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas"
)

// formRefunder asks the stand-in for refunds in Stripe's own form: as little of
// an adapter as the worker's rules need.
type formRefunder struct {
	base          string
	client        *http.Client
	before, after func(call string)
	state         func(stripe domain.RefundState) domain.RefundState // what the bank says; nil: what Stripe says
}

type formRefund struct {
	ID       string            `json:"id"`
	Charge   string            `json:"charge"`
	Amount   int64             `json:"amount"`
	Currency string            `json:"currency"`
	Status   string            `json:"status"`
	Metadata map[string]string `json:"metadata"`
}

func (f *formRefunder) at(hook func(string), call string) {
	if hook != nil {
		hook(call)
	}
}

func (f *formRefunder) call(ctx context.Context, method, path, key string, form url.Values, into any) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, f.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, err
	}
	req.GetBody = nil
	req.Header.Set("Authorization", "Bearer sk_test_rig")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := f.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	return res.StatusCode, json.NewDecoder(res.Body).Decode(into)
}

func (f *formRefunder) outcome(r formRefund, from domain.Source) domain.RefundOutcome {
	o := domain.RefundOutcome{
		State: domain.RefundState(r.Status), StripeRefundID: r.ID, ChargeID: r.Charge,
		Money: domain.Money{Minor: r.Amount, Currency: domain.Currency(r.Currency)}, Evidence: r.ID, Source: from,
	}
	if f.state != nil {
		o.State = f.state(o.State)
	}
	return o
}

func (f *formRefunder) Refund(ctx context.Context, o sagas.RefundOrder) domain.RefundOutcome {
	f.at(f.before, "refund")
	defer f.at(f.after, "refund")
	form := url.Values{"charge": {o.ChargeID}, "amount": {fmt.Sprint(o.Amount.Minor)}}
	for name, value := range o.Markers() {
		form.Set("metadata["+name+"]", value)
	}
	var r formRefund
	switch status, err := f.call(ctx, http.MethodPost, "/v1/refunds", string(o.Key()), form, &r); {
	case err != nil:
		return domain.RefundOutcome{State: domain.RefundStateUnknown, Reason: err.Error(), Source: domain.SourceAnswer}
	case status == http.StatusOK && r.ID != "":
		return f.outcome(r, domain.SourceAnswer)
	case status == http.StatusTooManyRequests, status == http.StatusUnauthorized:
		return domain.RefundOutcome{State: domain.RefundStateRequested, Reason: "not executed", Source: domain.SourceAnswer}
	case status == http.StatusBadRequest:
		return domain.RefundOutcome{State: domain.RefundStateRefused, Reason: "refused", Source: domain.SourceAnswer}
	default:
		return domain.RefundOutcome{State: domain.RefundStateUnknown, Reason: fmt.Sprint(status), Source: domain.SourceAnswer}
	}
}

func (f *formRefunder) FindRefund(ctx context.Context, o sagas.RefundOrder) domain.RefundOutcome {
	f.at(f.before, "find")
	defer f.at(f.after, "find")
	unread := func(why any) domain.RefundOutcome {
		return domain.RefundOutcome{State: domain.RefundStateUnknown, Reason: fmt.Sprint(why), Source: domain.SourceFind}
	}
	if o.StripeRefundID != "" {
		var r formRefund
		if status, err := f.call(ctx, http.MethodGet, "/v1/refunds/"+o.StripeRefundID, "", nil, &r); err != nil || status != http.StatusOK {
			return unread(errors.Join(err, fmt.Errorf("status %d", status)))
		}
		return f.outcome(r, domain.SourceFind)
	}
	after := ""
	for {
		var page struct {
			Data []formRefund `json:"data"`
			More bool         `json:"has_more"`
		}
		path := "/v1/refunds?limit=100&charge=" + o.ChargeID
		if after != "" {
			path += "&starting_after=" + after
		}
		if status, err := f.call(ctx, http.MethodGet, path, "", nil, &page); err != nil || status != http.StatusOK {
			return unread(errors.Join(err, fmt.Errorf("status %d", status)))
		}
		for _, r := range page.Data {
			if after = r.ID; r.Metadata["refund_id"] == o.RefundID {
				return f.outcome(r, domain.SourceFind)
			}
		}
		if !page.More || after == "" {
			return domain.RefundOutcome{State: domain.RefundStateRequested, Reason: "absent", Source: domain.SourceFind}
		}
	}
}

// refunding starts a refund worker, and its processor, beside a service.
func (s *service) refunding(change ...func(*formRefunder)) (stop func()) {
	s.t.Helper()
	f := &formRefunder{base: s.stripe.APIURL, client: &http.Client{Timeout: testTimeout, Transport: &http.Transport{DisableKeepAlives: true}}}
	for _, c := range change {
		c(f)
	}
	return s.refundingBy(f)
}

// refundingBy is refunding by another road.
func (s *service) refundingBy(f sagas.Refunder) (stop func()) {
	s.t.Helper()
	clock := sagas.ControlClock(s.stripe.ControlURL + "/control/clock")
	worker, err := sagas.NewRefunds(sagas.RefundsConfig{Concurrency: 4, Timeout: testTimeout, Lease: testLease, Poll: 50 * time.Millisecond, Actor: "refunds"}, s.d, f, clock, s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	runtime := tracking.New(s.pool, s.store, tracking.Options{Log: s.log, Poll: 50 * time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := runtime.Run(ctx, sagas.RefundPreflight(worker.Wake)); err != nil {
			s.t.Errorf("processors: %v", err)
		}
	})
	parts.Go(func() {
		if err := worker.Run(ctx, 5*time.Second); err != nil {
			s.t.Errorf("refunds: %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		parts.Wait()
	})
	s.t.Cleanup(stop)
	return stop
}

// paidBill is a service with one customer, whose November bill of $50.00 is paid.
func (r *rig) paidBill(id domain.CustomerID) *service {
	r.t.Helper()
	s := r.start(options{})
	s.owe(id)
	r.once(november, id)
	return s
}

func (s *service) giveBack(id domain.CustomerID, refundID string, minor int64) {
	s.t.Helper()
	s.must(commands.Of(commands.NewRefundCharge(id, november, refundID, minor, "")))
}

func (s *service) refundState(id domain.CustomerID, refundID string) domain.RefundState {
	s.t.Helper()
	c, err := s.d.Customer(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	refund, _ := c.MoneyBack(november).Refund(refundID, "")
	return refund.State
}

func (r *rig) refundRow(id domain.CustomerID, refundID string) (state string) {
	_ = r.pool.QueryRow(context.Background(), `SELECT state FROM refund_records WHERE customer_id = $1 AND refund_id = $2`, string(id), refundID).Scan(&state)
	return state
}

func (s *service) awaitRefund(id domain.CustomerID, refundID string, state domain.RefundState) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("refund %s of %s is %s (it is %s, its row %s)", refundID, id, state, s.refundState(id, refundID), s.refundRow(id, refundID)), func() bool {
		return s.refundState(id, refundID) == state && s.refundRow(id, refundID) == string(state)
	})
}

// back is what the stand-in gave back of a customer's charges.
func (r *rig) back(id domain.CustomerID) (minor int64) {
	for _, m := range r.stripe.Ledger() {
		if m.Metadata["customer_id"] == string(id) {
			minor += m.Refunded
		}
	}
	return minor
}

// refundPosts counts the requests for refunds that arrived.
func (r *rig) refundPosts() (n int) {
	for _, q := range r.stripe.Requests() {
		if q.Method == http.MethodPost && q.Path == "/v1/refunds" {
			n++
		}
	}
	return n
}

func (r *rig) refundFault(kind sim.Kind, times int) string {
	r.t.Helper()
	id, err := r.stripe.AddFault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/refunds"}, Kind: kind, Times: times})
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// tryRefundsNow lets rows be tried now instead of after their back-off.
func (r *rig) tryRefundsNow() {
	if _, err := r.pool.Exec(context.Background(), `UPDATE refund_records SET next_try_at = NULL WHERE state <> 'sending'`); err != nil {
		r.t.Error(err)
	}
}

// freezeRefundOnce blocks the first time a call reaches a point, until the
// returned function is called.
func freezeRefundOnce(t *testing.T, when, call string) (wrap func(*formRefunder), frozen <-chan struct{}, thaw func()) {
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	hook := func(at string) func(string) {
		return func(c string) {
			if at == when && c == call {
				once.Do(func() {
					close(reached)
					select {
					case <-release:
					case <-t.Context().Done():
					}
				})
			}
		}
	}
	thaw = sync.OnceFunc(func() { close(release) })
	t.Cleanup(thaw)
	return func(f *formRefunder) { f.before, f.after = hook("before"), hook("after") }, reached, thaw
}

func TestRefundsConfig(t *testing.T) {
	t.Parallel()
	good := sagas.RefundsConfig{Concurrency: 1, Timeout: time.Second, Lease: 2 * time.Second, Poll: time.Second}
	for what, change := range map[string]func(*sagas.RefundsConfig){
		"no hands": func(c *sagas.RefundsConfig) { c.Concurrency = 0 }, "no time-out": func(c *sagas.RefundsConfig) { c.Timeout = 0 },
		"a lease within the time-out": func(c *sagas.RefundsConfig) { c.Lease = time.Second }, "no poll": func(c *sagas.RefundsConfig) { c.Poll = 0 },
	} {
		bad := good
		change(&bad)
		if _, err := sagas.NewRefunds(bad, commands.NewDispatcher(nil), nil, nil, nil); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}

func TestRefund(t *testing.T) {
	r := newRig(t)
	s := r.paidBill("acme")
	s.giveBack("acme", "r1", 2000) // no worker yet: the row is written when the processor comes
	s.refunding()
	s.awaitRefund("acme", "r1", domain.RefundStateSucceeded)
	s.giveBack("acme", "r2", 2000) // an equal one
	s.awaitRefund("acme", "r2", domain.RefundStateSucceeded)
	if _, err := s.send(commands.Of(commands.NewRefundCharge("acme", november, "r3", 1001, ""))); !is(err, domain.ErrRefundExceeds) {
		t.Errorf("more than the charge: %v", err)
	}
	if back := r.back("acme"); back != 4000 || r.refundPosts() != 2 {
		t.Errorf("%d went back in %d requests, want 4000 in 2", back, r.refundPosts())
	}
	r.once(november, "acme") // a refunded bill stays billed
}

// TestRefundLightsOut freezes a worker at each point around the calls to
// Stripe, for longer than its lease. Another one takes the refund over; then
// the frozen one wakes up. The money goes back once.
func TestRefundLightsOut(t *testing.T) {
	for _, point := range []struct{ when, call string }{
		{"before", "find"},   // claimed, nothing sent
		{"after", "find"},    // not there, not yet sent
		{"before", "refund"}, // marked as sent
		{"after", "refund"},  // executed, not recorded
	} {
		t.Run(point.when+" "+point.call, func(t *testing.T) {
			r := newRig(t)
			s := r.paidBill("acme")
			wrap, frozen, thaw := freezeRefundOnce(t, point.when, point.call)
			stop := s.refunding(wrap)
			s.giveBack("acme", "r1", 2000)
			<-frozen
			other := r.start(options{noCollector: true})
			other.refunding()
			other.awaitRefund("acme", "r1", domain.RefundStateSucceeded)
			thaw()
			stop() // it finishes what it was doing first
			if back := r.back("acme"); back != 2000 {
				t.Errorf("%d went back, want 2000", back)
			}
			if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'refund.recorded.v1' AND payload->>'state' = 'succeeded'`); n != 1 {
				t.Errorf("%d facts say that it succeeded", n)
			}
			if r.refundRow("acme", "r1") != "succeeded" {
				t.Errorf("the row is %s", r.refundRow("acme", "r1"))
			}
		})
	}
}

// TestLostRefundAnswers loses answers in every way; each refund is found by its
// marker or asked for again under its key, and the money goes back once.
func TestLostRefundAnswers(t *testing.T) {
	for _, kind := range []sim.Kind{sim.CommitThenDrop, sim.DropBeforeCommit, sim.TruncateBody, sim.Gateway502AfterCommit, sim.Gateway503, sim.HTML200AfterCommit, sim.RateLimit429} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			r.refundFault(kind, 2)
			s := r.paidBill("acme")
			s.refunding()
			s.giveBack("acme", "r1", 2000)
			s.awaitRefund("acme", "r1", domain.RefundStateSucceeded)
			if back := r.back("acme"); back != 2000 || r.stripe.Counters().Mismatches != 0 {
				t.Errorf("%d went back, want 2000; %d mismatches", back, r.stripe.Counters().Mismatches)
			}
		})
	}
}

// TestRefundPastItsWindow: nothing is sent between the end of the key's window
// and a day of quiet. What Stripe then does not hold was never executed, and is
// asked for again; what it holds is found without a single POST.
func TestRefundPastItsWindow(t *testing.T) {
	t.Run("never executed", func(t *testing.T) {
		r := newRig(t)
		fault := r.refundFault(sim.DropBeforeCommit, -1)
		s := r.paidBill("acme")
		s.refunding()
		s.giveBack("acme", "r1", 2000)
		r.eventually("the answer is lost", func() bool { return s.refundState("acme", "r1") == domain.RefundStateUnknown })
		r.stripe.Advance(23*time.Hour + time.Minute)
		r.eventually("the window is over", func() bool {
			r.tryRefundsNow()
			return r.count(`SELECT count(*) FROM refund_records WHERE outcome->>'reason' LIKE 'the key''s window is over%'`) == 1
		})
		posts, tries := r.refundPosts(), r.count(`SELECT tries FROM refund_records`)
		r.stripe.ClearFaults(fault)
		r.eventually("it was read again", func() bool {
			r.tryRefundsNow()
			return r.count(`SELECT tries FROM refund_records`) >= tries+2
		})
		if n := r.refundPosts(); n != posts || r.back("acme") != 0 {
			t.Errorf("%d requests were sent past the window", n-posts)
		}
		r.stripe.Advance(25 * time.Hour)
		r.eventually("it is asked for again", func() bool {
			r.tryRefundsNow()
			return s.refundState("acme", "r1") == domain.RefundStateSucceeded
		})
		if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'refund.recorded.v1' AND payload->>'state' = 'requested' AND payload->>'source' = 'find'`); n != 1 || r.back("acme") != 2000 {
			t.Errorf("%d facts prove that it was not executed; %d went back", n, r.back("acme"))
		}
	})
	t.Run("executed", func(t *testing.T) {
		r := newRig(t)
		r.refundFault(sim.CommitThenDrop, -1)
		s := r.paidBill("acme")
		wrap, frozen, thaw := freezeRefundOnce(t, "after", "refund")
		s.refunding(wrap)
		s.giveBack("acme", "r1", 2000)
		<-frozen
		r.stripe.Advance(48 * time.Hour)
		posts := r.refundPosts()
		other := r.start(options{noCollector: true})
		other.refunding()
		other.awaitRefund("acme", "r1", domain.RefundStateSucceeded)
		if n := r.refundPosts(); n != posts || r.back("acme") != 2000 {
			t.Errorf("%d requests after the key was forgotten; %d went back", n-posts, r.back("acme"))
		}
		thaw()
	})
}

// TestPendingRefund: a refund that the bank has not answered is read until it
// has; one that the bank sends back later frees its room.
func TestPendingRefund(t *testing.T) {
	r := newRig(t)
	s := r.paidBill("acme")
	var mu sync.Mutex
	bank := domain.RefundStatePending
	s.refunding(func(f *formRefunder) {
		f.state = func(domain.RefundState) domain.RefundState {
			mu.Lock()
			defer mu.Unlock()
			return bank
		}
	})
	s.giveBack("acme", "r1", 5000)
	s.awaitRefund("acme", "r1", domain.RefundStatePending)
	mu.Lock()
	bank = domain.RefundStateSucceeded
	mu.Unlock()
	r.tryRefundsNow()
	s.awaitRefund("acme", "r1", domain.RefundStateSucceeded)
	if n := r.refundPosts(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	if _, err := s.send(commands.Of(commands.NewRefundCharge("acme", november, "r2", 5000, ""))); !is(err, domain.ErrRefundExceeds) {
		t.Errorf("a second full refund: %v", err)
	}
	c, err := s.d.Customer(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	known, _ := c.MoneyBack(november).Refund("r1", "")
	s.must(commands.Of(commands.NewRecordRefundOutcome("acme", november, "r1", domain.RefundOutcome{
		State: domain.RefundStateFailed, StripeRefundID: known.StripeRefundID, ChargeID: known.ChargeID, Money: known.Amount, Source: domain.SourceWebhook,
	})))
	s.awaitRefund("acme", "r1", domain.RefundStateFailed)
	s.must(commands.Of(commands.NewRefundCharge("acme", november, "r2", 5000, "")))
}

// TestRefusedRefund: a no is a no if no other send is unresolved.
func TestRefusedRefund(t *testing.T) {
	r := newRig(t)
	s := r.paidBill("acme")
	// Somebody gives all of it back by Stripe's own dashboard.
	f := &formRefunder{base: r.stripe.APIURL, client: http.DefaultClient}
	var made formRefund
	if status, err := f.call(t.Context(), http.MethodPost, "/v1/refunds", "dashboard", url.Values{"charge": {r.stripe.Ledger()[0].Charge}}, &made); err != nil || status != http.StatusOK {
		t.Fatalf("refund by the dashboard: %d, %v", status, err)
	}
	s.refunding()
	s.giveBack("acme", "r1", 2000)
	s.awaitRefund("acme", "r1", domain.RefundStateRefused)
	// Stripe tells of the other one, and then there is no room left.
	s.must(commands.Of(commands.NewRecordRefundOutcome("acme", november, "", domain.RefundOutcome{
		State: domain.RefundStateSucceeded, StripeRefundID: made.ID, ChargeID: made.Charge, Money: usd(made.Amount), Source: domain.SourceWebhook,
	})))
	if _, err := s.send(commands.Of(commands.NewRefundCharge("acme", november, "r2", 1, ""))); !is(err, domain.ErrRefundExceeds) {
		t.Errorf("more than the charge: %v", err)
	}
	if back := r.back("acme"); back != 5000 {
		t.Errorf("%d went back", back)
	}
}

// TestRefundAfterARestore: the log has lost a refund that Stripe holds, and the
// caller asks again under the same id. It is found; nothing is sent.
func TestRefundAfterARestore(t *testing.T) {
	r := newRig(t)
	s := r.paidBill("acme")
	f := &formRefunder{base: r.stripe.APIURL, client: http.DefaultClient}
	order := sagas.RefundOrder{CustomerID: "acme", Period: november, RefundID: "r1", ChargeID: r.stripe.Ledger()[0].Charge, Amount: usd(2000)}
	if o := f.Refund(t.Context(), order); o.State != domain.RefundStateSucceeded {
		t.Fatalf("the refund of the lost days: %+v", o)
	}
	r.stripe.Advance(25 * time.Hour) // and Stripe has forgotten the key
	s.refunding()
	s.giveBack("acme", "r1", 2000)
	s.awaitRefund("acme", "r1", domain.RefundStateSucceeded)
	if back := r.back("acme"); back != 2000 || r.refundPosts() != 1 {
		t.Errorf("%d went back in %d requests, want 2000 in 1", back, r.refundPosts())
	}
}

// TestRefundsWaitUntilReady: on a database that is not ours nothing is asked.
func TestRefundsWaitUntilReady(t *testing.T) {
	r := newRig(t)
	s := r.paidBill("acme")
	s.giveBack("acme", "r1", 2000)
	var mu sync.Mutex
	asked, ready := 0, error(errors.New("another environment's database"))
	worker, err := sagas.NewRefunds(sagas.RefundsConfig{
		Concurrency: 1, Timeout: testTimeout, Lease: testLease, Poll: time.Millisecond, Actor: "refunds",
		Ready: func() error {
			mu.Lock()
			defer mu.Unlock()
			asked++
			return ready
		},
	}, s.d, &formRefunder{base: r.stripe.APIURL, client: http.DefaultClient}, sagas.ControlClock(r.stripe.ControlURL+"/control/clock"), r.log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	runtime := tracking.New(s.pool, s.store, tracking.Options{Log: s.log, Poll: 50 * time.Millisecond})
	var parts sync.WaitGroup
	parts.Go(func() { _ = runtime.Run(ctx, sagas.RefundPreflight(worker.Wake)) })
	parts.Go(func() { _ = worker.Run(ctx, time.Second) })
	t.Cleanup(func() { cancel(); parts.Wait() })
	r.eventually("the row is there, and was left alone", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return asked > 20 && r.refundRow("acme", "r1") == "requested"
	})
	if r.refundPosts() != 0 {
		t.Error("a refund was sent on a database that is not ours")
	}
	mu.Lock()
	ready = nil
	mu.Unlock()
	s.awaitRefund("acme", "r1", domain.RefundStateSucceeded)
}

// TestC056_RefundOnceAndAtMostTheCharge: 20 parallel full refunds under one
// name, then 20 names, then three parts, with lost answers in between.
func TestC056_RefundOnceAndAtMostTheCharge(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.owe("acme", "bolt", "cone")
	r.once(november, "acme", "bolt", "cone")
	r.refundFault(sim.CommitThenDrop, 2)
	s.refunding()

	parallel := func(n int, request func(i int) commands.Request) (receipts []eventstore.Receipt, errs []error) {
		var mu sync.Mutex
		var callers sync.WaitGroup
		for i := range n {
			callers.Go(func() {
				receipt, err := s.d.Dispatch(t.Context(), request(i), commands.Context{Meta: eventstore.Meta{Actor: "test"}})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					errs = append(errs, err)
				} else {
					receipts = append(receipts, receipt)
				}
			})
		}
		callers.Wait()
		return receipts, errs
	}
	refund := func(id domain.CustomerID, name string, minor int64) commands.Request {
		return commands.Of(commands.NewRefundCharge(id, november, name, minor, ""))
	}

	// One name: one refund, 20 equal receipts.
	receipts, errs := parallel(20, func(int) commands.Request { return refund("acme", "r1", 5000) })
	fresh := 0
	for _, receipt := range receipts {
		if !receipt.Replayed {
			fresh++
		}
	}
	if len(receipts) != 20 || fresh != 1 || len(errs) != 0 {
		t.Errorf("one name: %d receipts, %d fresh, %v", len(receipts), fresh, errs)
	}
	if _, err := s.send(refund("acme", "r1", 2000)); !is(err, domain.ErrKeyReused) {
		t.Errorf("another amount under one name: %v", err)
	}
	// Twenty names: one refund, 19 refusals.
	receipts, errs = parallel(20, func(i int) commands.Request { return refund("bolt", fmt.Sprintf("r%d", i), 5000) })
	for _, err := range errs {
		if !is(err, domain.ErrRefundExceeds) {
			t.Errorf("one of twenty: %v", err)
		}
	}
	if len(receipts) != 1 || len(errs) != 19 {
		t.Errorf("twenty names: %d receipts, %d refusals", len(receipts), len(errs))
	}
	// Three parts of 2000: two fit.
	receipts, errs = parallel(3, func(i int) commands.Request { return refund("cone", fmt.Sprintf("part-%d", i), 2000) })
	if len(receipts) != 2 || len(errs) != 1 || !is(errs[0], domain.ErrRefundExceeds) {
		t.Errorf("three parts: %d receipts, %v", len(receipts), errs)
	}

	r.eventually("all have succeeded", func() bool {
		return r.count(`SELECT count(*) FROM refund_records WHERE state = 'succeeded'`) == 4
	})
	for id, want := range map[domain.CustomerID]int64{"acme": 5000, "bolt": 5000, "cone": 4000} {
		c, err := s.d.Customer(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		back := c.MoneyBack(november)
		if got := r.back(id); got != want || back.Refunded(back.ChargeID) != want {
			t.Errorf("%s: Stripe gave %d back, the log says %d, want %d", id, got, back.Refunded(back.ChargeID), want)
		}
		// Billing the same period again takes an explicit command of its own, and
		// the old one changes nothing.
		if again := s.must(commands.Of(commands.NewChargeBilling(id, november, usd(5000)))); !again.Replayed {
			t.Errorf("%s: the refunded bill was asked for again: %+v", id, again)
		}
	}
	r.once(november, "acme", "bolt", "cone")
	if n := r.stripe.Counters().Mismatches; n != 0 {
		t.Errorf("%d requests came with other parameters under a used key", n)
	}
}

// TestC027_HalfOfEachCurrencyGoesBack: amounts are minor units of the bill's
// own currency, whatever its decimals.
func TestC027_HalfOfEachCurrencyGoesBack(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.refunding()
	display := map[domain.Currency]string{"jpy": "¥500", "krw": "₩500", "usd": "$5.00"}
	for currency := range display {
		id := domain.CustomerID("in-" + string(currency))
		s.register("pm_card_visa", id)
		s.must(commands.Of(commands.NewChargeBilling(id, november, domain.Money{Minor: 500, Currency: currency})))
	}
	for currency, shown := range display {
		id := domain.CustomerID("in-" + string(currency))
		r.awaitState(id, november, "succeeded")
		s.giveBack(id, "half", 250)
		s.awaitRefund(id, "half", domain.RefundStateSucceeded)
		c, err := s.d.Customer(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		back := c.MoneyBack(november)
		if back.Taken.String() != shown || back.Refunds[0].Amount != (domain.Money{Minor: 250, Currency: currency}) {
			t.Errorf("%s: took %s, gave %s back", currency, back.Taken, back.Refunds[0].Amount)
		}
	}
	for _, m := range r.stripe.Ledger() {
		if m.Amount != 500 || m.Refunded != 250 || display[domain.Currency(m.Currency)] == "" {
			t.Errorf("the ledger has %d %s, %d given back", m.Amount, m.Currency, m.Refunded)
		}
	}
	if n := len(r.stripe.Ledger()); n != 3 {
		t.Errorf("%d charges", n)
	}
}
