package sim_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// types are the types of the events from the n-th on, oldest first.
func types(s *sim.Server, from int) []string {
	var all []string
	for _, e := range s.Events("")[from:] {
		all = append(all, e.Type)
	}
	return all
}

// Every change of state is told, in its order, by the request that made it.
func TestEveryChangeIsAnEvent(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	n := 0
	tells := func(what string, want ...string) {
		t.Helper()
		if got := types(s, n); !slices.Equal(got, want) {
			t.Errorf("%s tells %v, want %v", what, got, want)
		}
		n = len(s.Events(""))
	}
	confirm := func(id, key, method string) {
		t.Helper()
		if _, err := c.PaymentIntents.Confirm(id, confirmParams(key, method)); err != nil {
			stripeError(t, err, 402, "card_declined")
		}
	}
	pi := create(t, c, "create")
	tells("create", "payment_intent.created")
	confirm(pi.ID, "k1", "pm_card_chargeCustomerFail")
	tells("a decline", "charge.failed", "payment_intent.payment_failed")
	confirm(pi.ID, "k2", "pm_card_visa")
	tells("a success", "charge.succeeded", "payment_intent.succeeded")
	confirm(pi.ID, "k2", "pm_card_visa")
	tells("a replay")

	last := s.Events("payment_intent.succeeded")[0]
	equal(t, "object", last.Object, pi.ID)
	equal(t, "key", last.IdempotencyKey, "k2")
	equal(t, "request", last.Request, s.LedgerWhere(sim.LedgerFilter{Key: "k2"})[0].Request)

	gone := create(t, c, "create-gone")
	if _, err := c.PaymentIntents.Cancel(gone.ID, nil); err != nil {
		t.Fatal(err)
	}
	tells("create and cancel", "payment_intent.created", "payment_intent.canceled")

	slow := create(t, c, "create-slow")
	confirm(slow.ID, "slow", "pm_sim_processing_1h_succeeds")
	s.Advance(2 * time.Hour)
	tells("processing", "payment_intent.created", "charge.pending", "payment_intent.processing", "charge.succeeded", "payment_intent.succeeded")
	equal(t, "no request ends the wait", s.Events("payment_intent.succeeded")[1].Request, "")

	late := create(t, c, "create-late")
	arm(t, s, sim.Fault{Kind: sim.Error500RolledForward, Match: sim.Match{Key: "late"}, Delay: 5 * time.Hour})
	_, err := c.PaymentIntents.Confirm(late.ID, confirmParams("late", "pm_card_visa"))
	stripeError(t, err, 500, "")
	tells("a 500 to be rolled forward", "payment_intent.created")
	s.Advance(6 * time.Hour)
	tells("rolled forward", "charge.succeeded", "payment_intent.succeeded")
	equal(t, "key of what was rolled forward", s.Events("charge.succeeded")[2].IdempotencyKey, "late")

	p := createParams("at-once")
	p.Confirm, p.PaymentMethod = stripe.Bool(true), stripe.String("pm_card_visa")
	if _, err := c.PaymentIntents.New(p); err != nil {
		t.Fatal(err)
	}
	tells("create with confirm", "payment_intent.created", "charge.succeeded", "payment_intent.succeeded")
	if _, err := c.Charges.New(chargeParams("legacy")); err != nil {
		t.Fatal(err)
	}
	tells("a legacy charge", "charge.succeeded")
	if _, err := s.PlantCharge(sim.Plant{Customer: "cus_A", Amount: 700, Currency: "usd", WithIntent: true}); err != nil {
		t.Fatal(err)
	}
	tells("a planted charge", "payment_intent.succeeded", "charge.succeeded")
	if _, err := s.PlantCharge(sim.Plant{Customer: "cus_A", Amount: 700, Currency: "usd", Silent: true}); err != nil {
		t.Fatal(err)
	}
	tells("a charge planted in silence")
}

// An event shows its object as it was then, in stripe-go's shape.
func TestEventShowsTheObjectOfItsTime(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa")); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]string{"payment_intent.created": "requires_payment_method", "payment_intent.succeeded": "succeeded"} {
		e, err := c.Events.Get(s.Events(kind)[0].ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		var then stripe.PaymentIntent
		if err := json.Unmarshal(e.Data.Raw, &then); err != nil {
			t.Fatal(err)
		}
		equal(t, kind, string(then.Status), want)
		equal(t, "id", then.ID, pi.ID)
		equal(t, "api version", e.APIVersion, stripe.APIVersion)
		equal(t, "pending", e.PendingWebhooks, 0)
	}
	_, err := c.Events.Get("evt_none", nil)
	stripeError(t, err, 404, "resource_missing")
}

func eventIDs(t testing.TB, c *client.API, p *stripe.EventListParams) []string {
	t.Helper()
	list := c.Events.List(p)
	return idsOf(t, list, func() string { return list.Event().ID })
}

// The list of events pages and filters like the other lists, and forgets after
// 30 days.
func TestEventList(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	for n := range 7 {
		if _, err := c.Charges.New(chargeParams(keyN(n))); err != nil {
			t.Fatal(err)
		}
	}
	create(t, c, "create")
	var want []string
	for _, e := range s.Events("") {
		want = append(want, e.ID)
	}
	slices.Reverse(want)
	p := &stripe.EventListParams{}
	p.Limit = stripe.Int64(3)
	if got := eventIDs(t, c, p); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	newer := &stripe.EventListParams{}
	newer.EndingBefore = stripe.String(want[2])
	if got := eventIDs(t, c, newer); len(got) != 2 || !slices.Contains(want[:2], got[0]) {
		t.Errorf("newer than the third: %v of %v", got, want[:3])
	}
	equal(t, "of a type", len(eventIDs(t, c, &stripe.EventListParams{Type: stripe.String("payment_intent.created")})), 1)
	equal(t, "of a group", len(eventIDs(t, c, &stripe.EventListParams{Type: stripe.String("charge.*")})), 7)
	equal(t, "of types", len(eventIDs(t, c, &stripe.EventListParams{Types: stripe.StringSlice([]string{"charge.failed", "payment_intent.created"})})), 1)
	equal(t, "created later", len(eventIDs(t, c, &stripe.EventListParams{CreatedRange: &stripe.RangeQueryParams{GreaterThan: s.Now().Unix() + 60}})), 0)
	equal(t, "both filters", get(t, s, "/v1/events?type=a&types[]=b").status, 400)

	id := want[0]
	s.Advance(30*24*time.Hour + time.Minute)
	equal(t, "listed after 30 days", len(eventIDs(t, c, &stripe.EventListParams{})), 0)
	equal(t, "read after 30 days", get(t, s, "/v1/events/"+id).status, 404)
}

// Events are as durable as the money they tell of.
func TestEventsSurviveARestart(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "journal")
	s, c := start(t, sim.Options{Data: data})
	pi := create(t, c, "create")
	for n, method := range []string{"pm_card_chargeCustomerFail", "pm_card_visa"} {
		c.PaymentIntents.Confirm(pi.ID, confirmParams(keyN(n), method)) //nolint:errcheck // the first declines
	}
	r, err := c.Refunds.New(&stripe.RefundParams{PaymentIntent: stripe.String(pi.ID), Amount: stripe.Int64(100)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ChangeRefund(sim.RefundChange{Refund: r.ID, Status: "failed"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenDispute(sim.Dispute{Charge: r.Charge.ID}); err != nil {
		t.Fatal(err)
	}
	before := get(t, s, "/v1/events?limit=100").body
	equal(t, "events", len(s.Events("")), 13)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = start(t, sim.Options{Data: data})
	equal(t, "events after a restart", get(t, s, "/v1/events?limit=100").body, before)
}

// A refund can be pending, fail weeks later, and be made by somebody else.
func TestRefundsThatEndLater(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{Settings: sim.Settings{RefundsPending: true}})
	ch, err := c.Charges.New(chargeParams("k"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Refunds.New(&stripe.RefundParams{Charge: stripe.String(ch.ID), Amount: stripe.Int64(2000)})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "status", r.Status, stripe.RefundStatusPending)
	equal(t, "refunded while pending", s.Ledger()[0].Refunded, 2000)
	for _, status := range []string{"succeeded", "failed"} {
		equal(t, status, control(t, s, "POST", "/control/refunds", fmt.Sprintf(`{"refund":%q,"status":%q}`, r.ID, status), nil), 200)
	}
	if r, err = c.Refunds.Get(r.ID, nil); err != nil {
		t.Fatal(err)
	}
	equal(t, "status", r.Status, stripe.RefundStatusFailed)
	equal(t, "reason", string(r.FailureReason), "unknown")
	equal(t, "refunded after the failure", s.Ledger()[0].Refunded, 0)
	equal(t, "told", len(s.Events("refund.failed")), 1)
	equal(t, "told as a charge's", len(s.Events("charge.refund.updated")), 2)
	equal(t, "a failed one stays", control(t, s, "POST", "/control/refunds", fmt.Sprintf(`{"refund":%q,"status":"succeeded"}`, r.ID), nil), 400)

	var planted sim.Refund
	equal(t, "at the dashboard", control(t, s, "POST", "/control/refunds", fmt.Sprintf(`{"charge":%q,"amount":500,"metadata":{"by":"hand"}}`, ch.ID), &planted), 200)
	equal(t, "planted", planted.Status, "succeeded")
	equal(t, "refunded by hand", s.Ledger()[0].Refunded, 500)
	equal(t, "too much", control(t, s, "POST", "/control/refunds", fmt.Sprintf(`{"charge":%q,"amount":4501}`, ch.ID), nil), 400)
	equal(t, "nothing", control(t, s, "POST", "/control/refunds", `{"refund":"re_none","status":"failed"}`, nil), 404)
	var all struct{ Refunds []sim.Refund }
	control(t, s, "GET", "/control/refunds", "", &all)
	equal(t, "refunds", len(all.Refunds), 2)
	for filter, want := range map[string]int{"charge=" + ch.ID: 2, "charge=ch_none": 0, "payment_intent=pi_none": 0} {
		var listed struct{ Data []any }
		if err := json.Unmarshal([]byte(get(t, s, "/v1/refunds?"+filter).body), &listed); err != nil {
			t.Fatal(err)
		}
		equal(t, filter, len(listed.Data), want)
	}
}

// A dispute opens and closes by control; the charge and the events tell of it.
func TestDisputes(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	pi, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
	if err != nil {
		t.Fatal(err)
	}
	n := len(s.Events(""))
	var d sim.Dispute
	open := fmt.Sprintf(`{"charge":%q,"reason":"duplicate"}`, pi.LatestCharge.ID)
	equal(t, "open", control(t, s, "POST", "/control/disputes", open, &d), 200)
	equal(t, "open again", control(t, s, "POST", "/control/disputes", open, nil), 400)
	ch, err := c.Charges.Get(pi.LatestCharge.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "disputed", ch.Disputed, true)
	got, err := c.Disputes.Get(d.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Amount != 5000 || got.Reason != "duplicate" || got.Status != "needs_response" || got.Charge.ID != ch.ID || got.PaymentIntent.ID != pi.ID {
		t.Errorf("the dispute reads as %+v", got)
	}
	_, err = c.Refunds.New(&stripe.RefundParams{Charge: stripe.String(ch.ID)})
	stripeError(t, err, 400, "charge_disputed")
	for _, status := range []string{"under_review", "won"} {
		equal(t, status, control(t, s, "POST", "/control/disputes", fmt.Sprintf(`{"dispute":%q,"status":%q}`, d.ID, status), nil), 200)
	}
	want := []string{
		"charge.dispute.created", "charge.updated", "charge.dispute.funds_withdrawn",
		"charge.dispute.updated", "charge.dispute.closed", "charge.dispute.funds_reinstated",
	}
	if got := types(s, n); !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	for _, body := range []string{
		fmt.Sprintf(`{"dispute":%q,"status":"lost"}`, d.ID), `{"charge":"` + ch.ID + `","status":"odd"}`,
		fmt.Sprintf(`{"dispute":%q,"status":"won","amount":5}`, d.ID), `{}`,
	} {
		if status := control(t, s, "POST", "/control/disputes", body, nil); status == 200 {
			t.Errorf("%s is accepted", body)
		}
	}
	it := c.Disputes.List(&stripe.DisputeListParams{Charge: stripe.String(ch.ID)})
	listed := 0
	for it.Next() {
		listed++
	}
	if it.Err() != nil || listed != 1 {
		t.Errorf("listed %d, %v", listed, it.Err())
	}
	var all struct{ Disputes []sim.Dispute }
	control(t, s, "GET", "/control/disputes", "", &all)
	equal(t, "status", all.Disputes[0].Status, "won")
}
