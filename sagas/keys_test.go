package sagas_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// TestC079_KeysBelongToOneCall bills, retries, settles, gives money back twice
// with a lost answer, and changes the card; and looks at all that Stripe was sent:
// a key never goes to two addresses, the same call has the same key, and reads
// carry none.
func TestC079_KeysBelongToOneCall(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.register("pm_sim_declines_n_2_insufficient_funds", "retried")
	s.register("pm_sim_declines_insufficient_funds", "settled")
	s.owe("paid")
	s.charge("retried", november)
	s.charge("settled", november)
	r.awaitState("retried", november, "declined")
	r.awaitState("settled", november, "declined")
	s.must(commands.Of(commands.NewRetryCharge("retried", november, 2, commands.StepManual)))
	s.must(commands.Of(commands.NewSettleBilling("settled", november, "wire 77", "op-1")))
	r.once(november, "paid", "retried")
	r.awaitState("settled", november, "void")
	r.refundFault(sim.DropBeforeCommit, 1)
	s.refundingBy(r.gateway())
	for _, name := range []string{"half", "other-half"} {
		s.giveBack("paid", name, 2500)
		s.awaitRefund("paid", name, domain.RefundStateSucceeded)
	}
	s.must(commands.Of(commands.NewChangePaymentMethod("paid", "pm_card_mastercard", time.Time{}, "op-2")))
	s.charge("paid", november.Next())
	r.once(november.Next(), "paid")

	paths, refunds := map[string]string{}, map[string]int{}
	for _, q := range r.stripe.Requests() {
		switch {
		case q.Method != http.MethodPost && q.Key != "":
			t.Errorf("%s %s carries the key %s", q.Method, q.Path, q.Key)
		case q.Method != http.MethodPost:
		case q.Key == "":
			t.Errorf("%s %s carries no key", q.Method, q.Path)
		case paths[q.Key] != "" && paths[q.Key] != q.Path:
			t.Errorf("the key %s went to %s and to %s", q.Key, paths[q.Key], q.Path)
		default:
			paths[q.Key] = q.Path
			if q.Path == "/v1/refunds" {
				refunds[q.Key]++
			}
		}
	}
	if c := r.stripe.Counters(); c.Mismatches != 0 || c.UnkeyedPOSTs != 0 {
		t.Errorf("%d mismatches, %d POSTs without a key", c.Mismatches, c.UnkeyedPOSTs)
	}
	if len(paths) != 12 { // four creates, five confirms, one cancel, two refunds
		t.Errorf("%d keys: %v", len(paths), paths)
	}
	half, other := string(domain.RefundKey("paid", november, "half")), string(domain.RefundKey("paid", november, "other-half"))
	if len(refunds) != 2 || refunds[half] != 2 || refunds[other] != 1 {
		t.Errorf("refunds were asked for under %v", refunds)
	}
}
