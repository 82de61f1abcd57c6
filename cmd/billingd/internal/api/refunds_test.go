package api

import (
	"fmt"
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
)

// A refund by HTTP: one name moves money once, and the lists show it.
func TestRefundByHTTP(t *testing.T) {
	t.Parallel()
	i := start(t, tokensOf(t, "op:read+dispatch+operate:"+hashOf("op")))
	i.auth = "Bearer op"
	i.fill(1)
	i.project()
	tell := func(c commands.Request) {
		t.Helper()
		if _, err := commands.NewDispatcher(i.store).Dispatch(t.Context(), c, commands.Context{}); err != nil {
			t.Fatal(err)
		}
	}
	november := domain.PeriodOf(domain.Monthly, 2026, 11)
	fifty := domain.Money{Minor: 5000, Currency: "usd"}
	refund := func(id string, minor int, more string) answer {
		return i.send("refund-charge", fmt.Sprintf(`{"customer_id":"c00","billing_period":"2026-11","refund_id":%q,"amount_minor":%d%s}`, id, minor, more))
	}
	if p := refund("r-1", 2000, "").problem(t); p.Code != "not_billed" || p.Status != 422 {
		t.Errorf("before it is paid: %d %s", p.Status, p.Code)
	}
	tell(commands.Of(commands.NewRecordChargeOutcome("c00", november, 1, 1, domain.Outcome{Class: domain.Paid, ChargeID: "ch_1", IntentID: "pi_1", Money: fifty})))
	tell(commands.Of(commands.NewRecordChargeOutcome("c00", november, 1, 1, domain.Outcome{Class: domain.Paid, ChargeID: "ch_2", IntentID: "pi_2", Money: fifty})))

	first := refund("r-1", 2000, "").receipt(t)
	if again := refund("r-1", 2000, "").receipt(t); !again.Replayed || again.Position != first.Position || first.Key != "refund-charge/c00/r-1" {
		t.Errorf("the same refund again: %+v, first %+v", again, first)
	}
	for _, c := range []struct {
		answer answer
		status int
		code   string
	}{
		{refund("r-1", 2001, ""), 409, "key_reused"},
		{refund("r-2", 3001, ""), 422, "refund_exceeds_charge"},
		{refund("r-2", 1, `,"charge_id":"ch_9"`), 404, "unknown_charge"},
		{refund("r 2", 1, ""), 400, "invalid_input"},
		{refund("r-2", 0, ""), 400, "invalid_input"},
		{i.send("dismiss-refund-proposal", `{"customer_id":"c00","billing_period":"2026-11","charge_id":"ch_2","reason":"owed"}`), 400, "idempotency_key_required"},
		{i.send("dismiss-refund-proposal", `{"customer_id":"c00","billing_period":"2026-11","charge_id":"ch_1","reason":"owed"}`, "Idempotency-Key", "k1"), 404, "no_refund_proposal"},
		{i.send("record-refund-outcome", `{}`), 403, "internal_command"},
	} {
		if p := c.answer.problem(t); p.Status != c.status || p.Code != c.code {
			t.Errorf("got %d %s, want %d %s", p.Status, p.Code, c.status, c.code)
		}
	}
	var list projections.List[projections.Refund]
	i.get("/v1/refunds?status=proposed&wait=30s&after_position="+first.Position.String()).json(t, &list)
	if len(list.Items) != 1 || list.Items[0].ChargeID != "ch_2" || list.Items[0].Amount.Display != "$50.00" {
		t.Fatalf("proposed are %+v", list.Items)
	}
	given := refund("r-3", 5000, `,"charge_id":"ch_2"`).receipt(t)
	i.get("/v1/refunds?charge=ch_2&wait=30s&after_position="+given.Position.String()).json(t, &list)
	if len(list.Items) != 2 || list.Items[0].Status != projections.ProposalAnswered || list.Items[1].RefundID != "r-3" {
		t.Errorf("of the surplus charge: %+v", list.Items)
	}
	var charges projections.List[projections.Charge]
	i.get("/v1/charges?customer=c00&wait=30s&after_position="+given.Position.String()).json(t, &charges)
	if len(charges.Items) != 1 || charges.Items[0].Refunded == nil || charges.Items[0].Refunded.Display != "$20.00" {
		t.Errorf("the charge shows %+v", charges.Items)
	}
}
