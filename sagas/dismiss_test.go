package sagas_test

import (
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// TestC039_UnmarkedCharge: somebody has charged the customer by another road,
// without our markers: the same amount, on the same day. Billing makes one
// charge more at most, the pair is shown with both ids, and nothing goes back by
// itself. What is another amount, another day, or another customer is no pair.
func TestC039_UnmarkedCharge(t *testing.T) {
	r := newRig(t)
	double := r.plant(sim.Plant{Customer: "cus_acme", WithIntent: true})
	amount := r.plant(sim.Plant{Customer: "cus_acme", Amount: 5001})
	old := r.plant(sim.Plant{Customer: "cus_acme", Created: time.Date(2026, 11, 13, 12, 0, 0, 0, time.UTC)})
	other := r.plant(sim.Plant{Customer: "cus_other"})
	s := r.start(options{})
	s.owe("acme")
	r.once(november, "acme")
	var ours string
	for _, m := range r.stripe.Ledger() {
		if m.Metadata["customer_id"] == "acme" {
			ours = m.Charge
		}
	}
	d := s.desk(nil)
	for _, scope := range []sagas.Scope{{Period: november}, {}, {Period: november.Next()}} {
		v := d.books(t, scope)
		if v.Duplicates != 1 || v.Orphans != 3 || v.Repaired != 0 || v.Unrepaired != 4 {
			t.Errorf("%s: %+v", scope, v)
		}
		for _, f := range d.findings(t, v.ID) {
			pair := f.Kind == sagas.DifferencePossible
			if pair != (f.Subject == double.Charge) || pair && !(strings.Contains(f.Action, double.Charge) && strings.Contains(f.Detail, ours)) {
				t.Errorf("%s: found is %+v", scope, f)
			}
			if !pair && f.Subject != amount.Charge && f.Subject != old.Charge && f.Subject != other.Charge {
				t.Errorf("%s: found is %+v", scope, f)
			}
		}
	}
	if n := len(r.stripe.Ledger()); n != 5 {
		t.Errorf("%d charges, want the four that were there and one more", n)
	}
	for _, m := range r.stripe.Ledger() {
		if m.Refunded != 0 {
			t.Errorf("%s went back by itself", m.Charge)
		}
	}
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'refund.proposed.v1'`); n != 0 {
		t.Errorf("%d refunds are proposed of what nobody can prove", n)
	}
}

// TestDismissedFindings: what was looked into is dismissed, with who and why. It
// is shown, counted apart and never again as open; another object is.
func TestDismissedFindings(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	differences(t, r, s)
	d := s.desk(nil)
	first := d.books(t, sagas.Scope{Period: november})
	dismissed := map[string]bool{}
	for _, f := range d.findings(t, first.ID) {
		_, err := d.reconcile.Dismiss(t.Context(), f.Kind, f.Subject, "looked into", "op")
		switch f.Kind {
		case sagas.DifferenceMissing, sagas.DifferenceMismatch, sagas.DifferencePossible:
			if err != nil {
				t.Errorf("dismiss %s %s: %v", f.Kind, f.Subject, err)
			}
			dismissed[f.Subject] = true
		case sagas.DifferenceOrphan:
			if f.Repaired != is(err, sagas.ErrNoFinding) {
				t.Errorf("dismiss %s %s, repaired %t: %v", f.Kind, f.Subject, f.Repaired, err)
			}
			dismissed[f.Subject] = !f.Repaired
		default:
			if !is(err, sagas.ErrNotDismissible) {
				t.Errorf("dismiss %s %s: %v", f.Kind, f.Subject, err)
			}
		}
	}
	if _, err := d.reconcile.Dismiss(t.Context(), sagas.DifferenceOrphan, "ch_never_seen", "looked into", "op"); !is(err, sagas.ErrNoFinding) {
		t.Errorf("what was not found is dismissed: %v", err)
	}
	var shop string
	for _, f := range d.findings(t, first.ID) {
		if f.Dismissed == nil != !dismissed[f.Subject] {
			t.Errorf("%s %s is dismissed by %+v", f.Kind, f.Subject, f.Dismissed)
		}
		if f.Kind == sagas.DifferenceOrphan && !f.Repaired && f.Amount == usd(777) {
			shop = f.Subject
		}
	}
	again, err := d.reconcile.Dismiss(t.Context(), sagas.DifferenceOrphan, shop, "looked into", "another")
	if err != nil || again.DismissedBy != "op" || again.DismissedAt.IsZero() {
		t.Errorf("dismissed again: %+v, %v", again, err)
	}
	if _, err := d.reconcile.Dismiss(t.Context(), sagas.DifferenceOrphan, shop, "another reason", "another"); !is(err, sagas.ErrFindingDismissed) {
		t.Errorf("dismissed for another reason: %v", err)
	}
	// The surplus charge of "double" is decided by its proposal.
	var surplus string
	if err := r.pool.QueryRow(t.Context(), `SELECT payload->>'charge_id' FROM events WHERE event_type = 'refund.proposed.v1'`).Scan(&surplus); err != nil {
		t.Fatal(err)
	}
	s.must(commands.Of(commands.NewDismissRefundProposal("double", november, surplus, "it paid an older bill", "op-1")))
	for _, scope := range []sagas.Scope{{Period: november}, {}} {
		if v := d.books(t, scope); v.Unrepaired != 0 || v.Repaired != 0 || v.Orphans+v.Missing+v.Mismatches+v.Duplicates != 0 || v.Dismissed != 4 {
			t.Errorf("%s: a house that was cleaned shows %+v", scope, v)
		}
	}
	r.plant(sim.Plant{Customer: "cus_shop", Amount: 779})
	if v := d.books(t, sagas.Scope{Period: november}); v.Unrepaired != 1 || v.Orphans != 1 || v.Dismissed != 4 {
		t.Errorf("with another charge: %+v", v)
	}
}

// TestReconcileReadsAChargeByItsID: a bill was paid by a legacy charge before
// the days that are compared. It is read by itself and found there; one that is
// not at Stripe, one that is another customer's and one of another amount are
// told apart.
func TestReconcileReadsAChargeByItsID(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	ids := []domain.CustomerID{"there", "gone", "stranger", "cheap"}
	s.register("pm_card_visa", ids...)
	october := time.Date(2026, 9, 20, 12, 0, 0, 0, time.UTC)
	for _, id := range ids {
		s.charge(id, november)
		p := sim.Plant{Customer: "cus_" + string(id), Created: october, Metadata: markers(id, november)}
		switch id {
		case "stranger":
			p.Customer = "cus_somebody"
		case "cheap":
			p.Amount = 4000
		}
		charge := r.plant(p).Charge
		if id == "gone" {
			charge = "ch_nowhere"
		}
		s.must(commands.Of(commands.NewRecordChargeOutcome(id, november, 1, 0, domain.Outcome{Class: domain.Paid, ChargeID: charge, Money: usd(5000), Source: domain.SourceAnswer})))
	}
	r.eventually("rows are there", func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == len(ids)
	})
	d := s.desk(nil)
	v := d.books(t, sagas.Scope{Since: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)})
	got := map[string]sagas.DifferenceKind{}
	for _, f := range d.findings(t, v.ID) {
		got[f.CustomerID] = f.Kind
	}
	if len(got) != 3 || got["gone"] != sagas.DifferenceMissing || got["stranger"] != sagas.DifferenceMismatch || got["cheap"] != sagas.DifferenceMismatch {
		t.Errorf("found are %v", got)
	}
}
