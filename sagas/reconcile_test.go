package sagas_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// arriving lets something happen between two pages of a list.
type arriving struct {
	sagas.Gateway
	pages *atomic.Int64
	then  func(page int64)
}

func (a arriving) List(ctx context.Context, l sagas.Listing) (sagas.Page, error) {
	page, err := a.Gateway.List(ctx, l)
	a.then(a.pages.Add(1))
	return page, err
}

// TestC085_MoreThanOnePageOfCharges has 350 charges of a period at Stripe, of
// which the log does not know three, and two more that are nobody's; while the
// lists are read, further charges arrive. All pages are read, the three are
// repaired, the two are named, and a second run finds nothing else.
func TestC085_MoreThanOnePageOfCharges(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	ids := customers(350)
	s.register("pm_card_visa", ids...)
	for i, id := range ids {
		s.charge(id, november)
		m := r.plant(sim.Plant{Customer: "cus_" + string(id), Metadata: markers(id, november), WithIntent: i%2 == 0})
		if i >= 3 {
			s.must(commands.Of(commands.NewRecordChargeOutcome(id, november, 1, 0, domain.Outcome{
				Class: domain.Paid, ChargeID: m.Charge, IntentID: m.Intent, Money: usd(5000), Source: domain.SourceAnswer,
			})))
		}
	}
	extra := []sim.Movement{r.plant(sim.Plant{Customer: "cus_shop", Amount: 777}), r.plant(sim.Plant{Customer: "cus_shop", Amount: 778, WithIntent: true})}
	r.eventually("all rows follow the log", func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == len(ids)-3 &&
			r.count(`SELECT count(*) FROM billing_records WHERE state = 'reserved'`) == 3
	})
	late := domain.CustomerID("late")
	s.register("pm_card_visa", late)
	d := s.desk(func(g sagas.Gateway) sagas.Gateway {
		return arriving{g, new(atomic.Int64), func(page int64) {
			if page == 2 { // between two pages: known to the log as soon as it is there
				m := r.plant(sim.Plant{Customer: "cus_late", Metadata: markers(late, november.Next()), WithIntent: true})
				s.must(commands.Of(commands.NewRecordChargeOutcome(late, november.Next(), 1, 0, domain.Outcome{
					Class: domain.Paid, ChargeID: m.Charge, IntentID: m.Intent, Money: usd(5000), Source: domain.SourceAnswer,
				})))
			}
		}}
	})
	first := d.books(t, sagas.Scope{Period: november})
	if first.Charges != 352 || first.Bills != 350 || first.Unrecorded != 3 || first.Repaired != 3 || first.Orphans != 2 || first.Unrepaired != 2 ||
		first.Missing+first.Mismatches+first.Duplicates != 0 {
		t.Errorf("the first run found %+v", first)
	}
	for _, f := range d.findings(t, first.ID) {
		if f.Kind == sagas.DifferenceOrphan && f.ChargeID != extra[0].Charge && f.ChargeID != extra[1].Charge {
			t.Errorf("an orphan is %+v", f)
		}
	}
	for _, id := range ids[:3] {
		r.awaitState(id, november, "succeeded")
	}
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND payload->>'recovered' = 'true' AND payload->>'source' = 'reconcile'`); n != 3 {
		t.Errorf("%d bills are recovered by comparison, want 3", n)
	}
	second := d.books(t, sagas.Scope{Period: november})
	if second.Charges != 352 || second.Orphans != 2 || second.Repaired != 0 || second.Unrepaired != 2 || second.Unrecorded != 0 {
		t.Errorf("the second run found %+v", second)
	}
}

// TestReconcileCountsWhatStripeTook: each charge of a period's bills once, by
// whatever way it is met: in the lists, in the lists though the log has only its
// intent's id, or read by itself since it is older than the lists go back.
func TestReconcileCountsWhatStripeTook(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	ids := []domain.CustomerID{"listed", "nameless", "early"}
	s.register("pm_card_visa", ids...)
	february := domain.PeriodOf(domain.Monthly, 2027, 2)
	for i, id := range ids {
		period := november
		if id == "early" {
			period = february
		}
		s.charge(id, period)
		m := r.plant(sim.Plant{Customer: "cus_" + string(id), Metadata: markers(id, period), WithIntent: true})
		if id == "nameless" {
			m.Charge = ""
		}
		s.must(commands.Of(commands.NewRecordChargeOutcome(id, period, 1, 0, domain.Outcome{
			Class: domain.Paid, ChargeID: m.Charge, IntentID: m.Intent, Money: usd(5000), Source: domain.SourceAnswer,
		})))
		r.eventually("the row follows the log", func() bool { return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == i+1 })
	}
	r.plant(sim.Plant{Customer: "cus_shop", Amount: 777})
	d := s.desk(nil)
	for period, want := range map[domain.Period]int64{november: 10_000, february: 5000} {
		v := d.books(t, sagas.Scope{Period: period})
		if !v.Done() || len(v.Taken) != 1 || v.Taken["usd"] != want || v.Missing+v.Mismatches+v.Duplicates != 0 {
			t.Errorf("of %s Stripe took %v, want %d: %+v", period, v.Taken, want, v)
		}
		if id, err := d.reconcile.Latest(t.Context(), sagas.Scope{Period: period}); err != nil || id != v.ID {
			t.Errorf("the newest of %s is %d, %v, want %d", period, id, err, v.ID)
		}
	}
	if v := d.books(t, sagas.Scope{}); v.Taken != nil {
		t.Errorf("a comparison of everything tells %v of a period", v.Taken)
	}
}

// world is a small one in which every kind of difference occurs.
func differences(t *testing.T, r *rig, s *service) {
	t.Helper()
	ids := []domain.CustomerID{"fine", "missing", "unrecorded", "wrong", "double", "row"}
	s.register("pm_card_visa", ids...)
	for _, id := range ids {
		s.charge(id, november)
	}
	r.eventually("rows are there", func() bool { return r.count(`SELECT count(*) FROM billing_records`) == len(ids) })
	paid := func(id domain.CustomerID, charge, intent string) {
		s.must(commands.Of(commands.NewRecordChargeOutcome(id, november, 1, 0, domain.Outcome{
			Class: domain.Paid, ChargeID: charge, IntentID: intent, Money: usd(5000), Source: domain.SourceAnswer,
		})))
	}
	at := func(id domain.CustomerID, amount int64) sim.Movement {
		return r.plant(sim.Plant{Customer: "cus_" + string(id), Amount: amount, Metadata: markers(id, november), WithIntent: true})
	}
	for _, id := range []domain.CustomerID{"fine", "double", "row"} {
		m := at(id, 5000)
		paid(id, m.Charge, m.Intent)
	}
	paid("missing", "ch_nowhere", "pi_nowhere")
	m := at("wrong", 4000)
	paid("wrong", m.Charge, m.Intent)
	at("double", 5000)
	at("unrecorded", 5000)
	r.plant(sim.Plant{Customer: "cus_shop", Amount: 777})                                                                                        // without markers
	r.plant(sim.Plant{Customer: "cus_gone", Metadata: markers("gone", november)})                                                                // markers of a bill that the log never had
	r.plant(sim.Plant{Customer: "cus_odd", Metadata: map[string]string{"customer_id": "odd", "billing_period": "2026-11", "billing_key": "no"}}) // markers that are not ours
	for _, id := range []domain.CustomerID{"fine", "double", "row", "missing", "wrong"} {
		r.awaitState(id, november, "succeeded")
	}
	if _, err := r.pool.Exec(t.Context(), `UPDATE billing_records SET state = 'unknown', next_try_at = 'infinity' WHERE customer_id = 'row'`); err != nil {
		t.Fatal(err)
	}
}

// TestReconcileFindsEveryDifference: each kind is found, what is provable is
// repaired, and nothing is refunded.
func TestReconcileFindsEveryDifference(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	differences(t, r, s)
	d := s.desk(nil)
	v := d.books(t, sagas.Scope{Period: november})
	got := map[string]bool{}
	for _, f := range d.findings(t, v.ID) {
		got[fmt.Sprintf("%s %s repaired=%t", f.Kind, f.CustomerID, f.Repaired)] = true
		if f.Detail == "" || f.Action == "" {
			t.Errorf("%s %s says nothing", f.Kind, f.Subject)
		}
	}
	for _, want := range []string{
		"missing missing repaired=false", "unrecorded unrecorded repaired=true", "mismatch wrong repaired=false", "duplicate double repaired=false",
		"row row repaired=true", "orphan  repaired=false", "orphan gone repaired=true", "orphan odd repaired=false",
	} {
		if !got[want] {
			t.Errorf("%q is not found", want)
		}
		delete(got, want)
	}
	for more := range got {
		t.Errorf("%q is found", more)
	}
	if v.Missing != 1 || v.Orphans != 3 || v.Unrecorded != 1 || v.Mismatches != 2 || v.Duplicates != 1 || v.Repaired != 3 || v.Unrepaired != 5 {
		t.Errorf("the totals are %+v", v)
	}
	if r.state("row", november) != "succeeded" || r.state("unrecorded", november) != "succeeded" {
		t.Errorf("rows are %s and %s", r.state("row", november), r.state("unrecorded", november))
	}
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'refund.proposed.v1'`); n != 1 {
		t.Errorf("%d refunds are proposed, want 1", n)
	}
	for _, m := range r.stripe.Ledger() {
		if m.Refunded != 0 {
			t.Errorf("%s was refunded", m.Charge)
		}
	}
	// An operator decides; then it is no finding any more.
	var surplus string
	if err := r.pool.QueryRow(t.Context(), `SELECT payload->>'charge_id' FROM events WHERE event_type = 'refund.proposed.v1'`).Scan(&surplus); err != nil {
		t.Fatal(err)
	}
	s.must(commands.Of(commands.NewDismissRefundProposal("double", november, surplus, "it paid an older bill", "dismiss-1")))
	if again := d.books(t, sagas.Scope{Period: november}); again.Duplicates != 0 || again.Repaired != 0 || again.Unrepaired != 4 {
		t.Errorf("after the decision the run finds %+v", again)
	}
}

// TestReconcileTwiceAtOnceAndDuringARun: two replicas reconcile at the same
// time, twice, while a third collects. Nothing is found twice, and no fact is
// written that would not have been.
func TestReconcileTwiceAtOnceAndDuringARun(t *testing.T) {
	r := newRig(t)
	collecting := r.start(options{concurrency: 4})
	ids := customers(40)
	collecting.owe(ids...)
	r.plant(sim.Plant{Customer: "cus_shop", Amount: 777})
	desks := []*desk{r.start(options{noCollector: true}).desk(nil), r.start(options{noCollector: true}).desk(nil)}
	var mu sync.Mutex
	seen := map[int64]sagas.Reconciliation{}
	var both sync.WaitGroup
	for _, d := range desks {
		both.Go(func() {
			for range 2 {
				v, err := d.reconcile.Reconcile(t.Context(), sagas.Scope{})
				if err != nil || v.State != "done" {
					t.Errorf("reconcile: %+v, %v", v, err)
				}
				mu.Lock()
				seen[v.ID] = v
				mu.Unlock()
			}
		})
	}
	both.Wait()
	r.once(november, ids...)
	for id, v := range seen {
		if v.Orphans != 1 || v.Missing+v.Mismatches+v.Duplicates != 0 {
			t.Errorf("run %d found %+v", id, v)
		}
	}
	last := desks[0].books(t, sagas.Scope{})
	if last.Bills != 40 || last.Charges != 41 || last.Unrepaired != 1 || last.Repaired != 0 {
		t.Errorf("afterwards: %+v", last)
	}
}

// TestReconcileIsTakenOver: what a replica was at when it died is begun anew by
// another.
func TestReconcileIsTakenOver(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	differences(t, r, s)
	ctx, cancel := context.WithCancel(t.Context())
	var pages atomic.Int64
	dying := s.desk(func(g sagas.Gateway) sagas.Gateway {
		return arriving{g, &pages, func(page int64) {
			if page == 2 {
				cancel()
			}
		}}
	})
	if _, err := dying.reconcile.Reconcile(ctx, sagas.Scope{Period: november}); err == nil {
		t.Fatal("it was not interrupted")
	}
	if n := r.count(`SELECT count(*) FROM reconciliations WHERE state = 'running'`); n != 1 {
		t.Fatalf("%d are running", n)
	}
	v := s.desk(nil).books(t, sagas.Scope{Period: november})
	if n := r.count(`SELECT count(*) FROM reconciliations`); n != 1 || v.Repaired != 3 || v.Unrepaired != 5 {
		t.Errorf("of %d, the one taken over found %+v", n, v)
	}
}

// TestReconcileSchedule: of two replicas that find it is time, one
// reconciliation comes; the next when its time has come.
func TestReconcileSchedule(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	for range 2 {
		d := s.desk(nil)
		running.Go(func() { _ = d.scheduled.Run(ctx) })
	}
	r.eventually("three were carried out", func() bool {
		return r.count(`SELECT count(*) FROM reconciliations WHERE state = 'done' AND requested_by = 'schedule'`) >= 3
	})
	if n := r.count(`SELECT count(*) FROM (SELECT created_at - lag(created_at) OVER (ORDER BY id) AS apart FROM reconciliations) AS r WHERE apart < interval '900 milliseconds'`); n != 0 {
		t.Errorf("%d came too early", n)
	}
}
