package projections_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

func TestTheWholeStory(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	ctx := t.Context()
	recorded := log.Given("acme", registered("acme"), activated("acme"), due("acme", november), requested("acme", november, 1),
		due("acme", december),
		domain.SubscriptionPaused{CustomerID: "acme", At: noon, Reason: "asked for"},
		domain.ChargeWaiting{CustomerID: "acme", BillingPeriod: november, Attempt: 1, Reason: "the subscription is paused"},
		domain.SubscriptionResumed{CustomerID: "acme", At: noon},
		started("acme", november, 1, 1), committed("acme", november, "pi_1"), declined("acme", november, 1, "ch_1"),
		domain.PaymentMethodChanged{CustomerID: "acme", PaymentMethodID: "pm_2"},
		domain.ChargeRequested{CustomerID: "acme", BillingPeriod: november, Attempt: 2, Key: domain.ChargeKey("acme", november, 2), Money: fifty, StripeCustomerID: "cus_1", PaymentMethodID: "pm_2"},
		started("acme", november, 2, 1), billed("acme", november, 2, "ch_2"))
	for _, sql := range []string{
		`INSERT INTO billing_records (customer_id, billing_period, partition, attempt, key, amount, currency, stripe_customer_id, payment_method, params, state, intent_id, outcome, last_position)
			VALUES ('acme', '2026-11', 1, 2, 'k', 5000, 'usd', 'cus_1', 'pm_2', '{"amount":5000}', 'succeeded', 'pi_1', '{"class":"paid"}', 9)`,
		`INSERT INTO sagas (saga, id, state, step, attempt, version, last_position) VALUES ('` + projections.BillingSaga + `', '` + projections.SagaID("acme", november) + `', '{}', 'charging', 2, 3, 9)`,
		`INSERT INTO dead_letters (processor, position, partition, sequence_key, event_id, event_type, attempts, error) VALUES ('preflight', 4, 1, 'acme', gen_random_uuid(), 'charge.requested.v1', 5, 'no')`,
		`INSERT INTO refund_records (customer_id, refund_id, billing_period, partition, charge_id, key, amount, currency, state, stripe_refund_id)
			VALUES ('acme', 'r-1', '2026-11', 1, 'ch_2', 'k-refund', 2500, 'usd', 'succeeded', 're_1'), ('acme', 'r-2', '2026-12', 1, 'ch_9', 'k-other', 1, 'usd', 'requested', NULL)`,
		`INSERT INTO webhook_inbox (event_id, type, object_id, says, api_version, live, created, source, news, customer_id, billing_period, state)
			VALUES ('evt_1', 'charge.succeeded', 'ch_2', 'succeeded', '2023-10-16', false, now(), 'webhook', '{}', 'acme', '2026-11', 'applied'),
			('evt_2', 'charge.succeeded', 'ch_9', 'succeeded', '2023-10-16', false, now(), 'webhook', '{}', 'acme', '2026-12', 'applied')`,
		`UPDATE events SET command_key = 'declare/acme' WHERE event_type = 'billing.due.v1'`,
		`INSERT INTO command_keys (key, command, fingerprint, stream_id, first_version, last_version) VALUES ('declare/acme', 'declare-billing-due', '', 'customer/acme', 3, 3)`,
	} {
		if _, err := log.Pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}

	s := must(log.Reads().Story(ctx, "acme", "2026-11"))(t)
	want(t, "status", s.Bill.Status, domain.BillPaid)
	want(t, "attempts", len(s.Attempts), 2)
	want(t, "first attempt", s.Attempts[0].Status, domain.BillDeclined)
	want(t, "second attempt", s.Attempts[1].ChargeID, "ch_2")
	var types []string
	for _, f := range s.Facts {
		types = append(types, f.Type)
	}
	if expected := []string{"billing.due.v1", "charge.requested.v1", "subscription.paused.v1", "charge.waiting.v1", "subscription.resumed.v1", "charge.attempt_started.v1",
		"charge.intent_committed.v1", "charge.declined.v1", "charge.requested.v1", "charge.attempt_started.v1", "customer.billed.v1"}; !slices.Equal(types, expected) {
		t.Errorf("facts %v, want %v", types, expected)
	}
	if len(s.Commands) != 1 || s.Commands[0].Command != "declare-billing-due" {
		t.Errorf("commands %+v", s.Commands)
	}
	if s.Record == nil || s.Record.State != "succeeded" || s.Record.Amount.Display != "$50.00" || string(s.Record.Outcome) != `{"class":"paid"}` {
		t.Errorf("billing record %+v", s.Record)
	}
	if s.Saga == nil || s.Saga.Step != "charging" {
		t.Errorf("saga %+v", s.Saga)
	}
	if expected := (projections.StripeIDs{
		Customers: []string{"cus_1"}, PaymentMethods: []string{"pm_1", "pm_2"}, Intents: []string{"pi_1"}, Charges: []string{"ch_1", "ch_2"},
		Refunds: []string{}, Disputes: []string{},
	}); !reflect.DeepEqual(s.Stripe, expected) {
		t.Errorf("Stripe ids %+v", s.Stripe)
	}
	if len(s.Refunds) != 1 || s.Refunds[0].RefundID != "r-1" || s.Refunds[0].Amount.Display != "$25.00" || *s.Refunds[0].StripeRefundID != "re_1" {
		t.Errorf("refund records %+v", s.Refunds)
	}
	if len(s.Webhooks) != 1 || s.Webhooks[0].EventID != "evt_1" || s.Webhooks[0].State != "applied" || s.Webhooks[0].Says != "succeeded" {
		t.Errorf("webhooks %+v", s.Webhooks)
	}
	if len(s.Parked) != 1 || !s.Attempts[1].Parked || s.Parked[0].Processor != "preflight" {
		t.Errorf("parked %+v", s.Parked)
	}
	want(t, "as of", s.AsOf.Position, recorded[len(recorded)-1].Place)
	if _, err := json.Marshal(s); err != nil {
		t.Errorf("the story as JSON: %v", err)
	}
}

func TestTheStoryOfNothing(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("acme", registered("acme"))
	ctx, reads := t.Context(), log.Reads()
	refused(t, second(reads.Story(ctx, "nobody", "2026-11")), domain.ErrUnknownCustomer, "")
	refused(t, second(reads.Story(ctx, "acme", "2026-11")), domain.ErrUnknownBill, "")
	refused(t, second(reads.Bill(ctx, "acme", "2026-11")), domain.ErrUnknownBill, "")
	refused(t, second(reads.Story(ctx, "acme", "2026-11-01")), domain.ErrInvalidInput, "billing_period")
	refused(t, second(reads.Story(ctx, "a b", "2026-11")), domain.ErrInvalidInput, "customer_id")
	refused(t, second(reads.Bills(ctx, "nobody", projections.Page{})), domain.ErrUnknownCustomer, "")
}

// A fact of a newer build is shown as it is; what can be read is folded.
func TestTheStoryShowsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("acme", registered("acme"), due("acme", november))
	if _, err := log.Pool.Exec(t.Context(), `INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload)
		SELECT partition, stream_id, 3, 'bill.blessed.v1', sequence_key, '{"billing_period":"2026-11"}'::json FROM events WHERE stream_version = 2
		UNION ALL SELECT partition, stream_id, 4, 'bill.blessed.v1', sequence_key, '{"billing_period":"2026-12"}'::json FROM events WHERE stream_version = 2`); err != nil {
		t.Fatal(err)
	}
	s := must(log.Reads().Story(t.Context(), "acme", "2026-11"))(t)
	want(t, "status", s.Bill.Status, domain.BillDue)
	want(t, "facts", len(s.Facts), 2)
	if !slices.Equal(s.Undecoded, []string{"bill.blessed.v1"}) {
		t.Errorf("undecoded %v", s.Undecoded)
	}
}

// The story is folded from the log, the lists from the read models: once they
// have caught up they say the same.
func TestTheStoryAgreesWithTheReadModels(t *testing.T) {
	t.Parallel()
	db := projectiontest.New(t)
	rapid.Check(t, func(rt *rapid.T) {
		log := db.Cleared(rt)
		log.Given("acme", lawful(rt, "acme")...)
		log.Project(projections.Customers, projections.Bills, projections.Charges)
		ctx, reads := rt.Context(), log.Reads()
		bills, err := reads.Bills(ctx, "acme", projections.Page{})
		if err != nil {
			rt.Fatalf("%v", err)
		}
		for _, bill := range bills.Items {
			story, err := reads.Story(ctx, string(bill.CustomerID), bill.BillingPeriod.String())
			if err != nil {
				rt.Fatalf("%v", err)
			}
			charges, err := reads.Charges(ctx, projections.ChargesQuery{Customer: "acme", Period: bill.BillingPeriod.String()})
			if err != nil {
				rt.Fatalf("%v", err)
			}
			if text(story.Bill) != text(bill) || text(story.Attempts) != text(charges.Items) {
				rt.Fatalf("the story says\n%s\n%s\nand the read models\n%s\n%s", text(story.Bill), text(story.Attempts), text(bill), text(charges.Items))
			}
		}
	})
}

func text(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
