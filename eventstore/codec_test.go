package eventstore_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

var update = flag.Bool("update", false, "write the golden files of facts that have none")

// samples has one of each fact, every field filled.
func samples() map[string]domain.Event {
	period := func(s string) (p domain.Period) {
		if err := p.UnmarshalText([]byte(s)); err != nil {
			panic(err)
		}
		return p
	}
	const c = domain.CustomerID("cust_123")
	nov := period("2026-11")
	at := time.Date(2026, 11, 14, 9, 26, 53, 589793238, time.UTC)
	usd := domain.Money{Minor: 4900, Currency: "usd"}
	report := domain.ChargeReport{CustomerID: c, BillingPeriod: nov, Attempt: 2, Start: 3, Reason: "no answer within 30s", Evidence: "req_Xy12"}
	facts := []domain.Event{
		domain.CustomerRegistered{CustomerID: c, StripeCustomerID: "cus_9s6XKzkNRiz8i3", PaymentMethodID: "pm_card_visa"},
		domain.PaymentMethodChanged{CustomerID: c, PaymentMethodID: "pm_card_mastercard"},
		domain.HistoryImported{CustomerID: c, BilledThrough: nov},
		domain.SubscriptionActivated{
			CustomerID: c, Money: domain.Money{Minor: 12340, Currency: "kwd"}, Cadence: domain.Quarterly, AnchorDay: 31, TimeZone: "America/Sao_Paulo",
			StartsOn: domain.Date{Year: 2026, Month: time.November, Day: 1},
		},
		domain.SubscriptionAmountChanged{CustomerID: c, AmountMinor: 5900, EffectivePeriod: period("2026-Q4")},
		domain.SubscriptionScheduleChanged{CustomerID: c, AnchorDay: 31, TimeZone: "Pacific/Kiritimati", EffectivePeriod: period("2026-12"), At: at},
		domain.SubscriptionPaused{CustomerID: c, At: at, Reason: "a holiday, \"for ever\" <&> é 😀"},
		domain.SubscriptionResumed{CustomerID: c, At: at},
		domain.SubscriptionCancelled{CustomerID: c, Mode: domain.CancelPeriodEnd, At: at, Reason: "moved away"},
		domain.MonthlyBillingDue{CustomerID: c, BillingPeriod: nov, DueAt: at, Money: usd},
		domain.ChargeRequested{
			CustomerID: c, BillingPeriod: nov, Attempt: 1, Key: "78add715f5445db3d7f8c24b1df859b6", Money: usd,
			StripeCustomerID: "cus_9s6XKzkNRiz8i3", PaymentMethodID: "pm_card_visa",
		},
		domain.ChargeAttemptStarted{CustomerID: c, BillingPeriod: nov, Attempt: 2, Start: 3, ResolveOnly: true},
		domain.ChargeIntentCommitted{CustomerID: c, BillingPeriod: nov, IntentID: "pi_3Nv", IntentNo: 2, Adopted: true},
		domain.CustomerBilled{CustomerID: c, BillingPeriod: period("2026"), Attempt: 2, ChargeID: "ch_3Nv", IntentID: "pi_3Nv", Money: usd, Source: domain.SourceLook, Recovered: true},
		domain.ChargeDeclined{CustomerID: c, BillingPeriod: nov, Attempt: 1, ChargeID: "ch_no", Code: "card_declined", DeclineCode: "insufficient_funds", Class: domain.Soft},
		domain.ChargeActionRequired{ChargeReport: report}, domain.ChargeRejected{ChargeReport: report}, domain.ChargeHeld{ChargeReport: report},
		domain.ChargeNotSent{ChargeReport: report}, domain.ChargeUnknown{ChargeReport: report}, domain.ChargeNeedsReview{ChargeReport: report},
		domain.ChargeOutcomeSurprise{ChargeReport: report},
		domain.ChargeWaiting{CustomerID: c, BillingPeriod: nov, Attempt: 1, Reason: "the subscription is paused"},
		domain.ChargeReleased{CustomerID: c, BillingPeriod: nov, Reason: "it was never settled"},
		domain.ChargeVoided{CustomerID: c, BillingPeriod: nov, Attempt: 1, Reason: "the subscription was cancelled"},
		domain.BillClosing{CustomerID: c, BillingPeriod: nov, Mode: domain.ClosingSettled, Reference: "wire 2026-11-14/77", Reason: "paid by bank"},
		domain.BillSettled{CustomerID: c, BillingPeriod: nov, Reference: "wire 2026-11-14/77"},
		domain.BillWrittenOff{CustomerID: c, BillingPeriod: nov, Reason: "uncollectible"},
		domain.DunningScheduled{CustomerID: c, BillingPeriod: nov, Attempt: 2, At: time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC), Day: 1,
			From: domain.Date{Year: 2026, Month: 11, Day: 1}, Reason: "the decline was soft: tried again on day 1"},
		domain.DunningWaiting{CustomerID: c, BillingPeriod: nov, Attempt: 1, Awaits: domain.AwaitsMethod,
			From: domain.Date{Year: 2026, Month: 11, Day: 1}, Reason: "there is no usable payment method"},
		domain.BillUncollectible{CustomerID: c, BillingPeriod: nov, Attempt: 5,
			From: domain.Date{Year: 2026, Month: 11, Day: 1}, Reason: "attempt 5 was declined, and no day of the schedule is left"},
		domain.SubscriptionDelinquent{CustomerID: c, BillingPeriod: nov, Money: domain.Money{Minor: 5000, Currency: "usd"},
			Reason: "attempt 5 was declined, and no day of the schedule is left"},
		domain.RefundRequested{CustomerID: c, BillingPeriod: nov, RefundID: "r-1001", ChargeID: "ch_3Nv", Key: domain.RefundKey(c, nov, "r-1001"), Money: domain.Money{Minor: 2450, Currency: "usd"}},
		domain.RefundRecorded{CustomerID: c, BillingPeriod: nov, RefundID: "r-1001", RefundOutcome: domain.RefundOutcome{
			State: domain.RefundStateFailed, StripeRefundID: "re_3Nv", ChargeID: "ch_3Nv", Money: domain.Money{Minor: 2450, Currency: "usd"},
			Code: "expired_or_canceled_card", Reason: "the bank sent it back", Evidence: "req_Xy12", Source: domain.SourceWebhook,
		}},
		domain.RefundProposed{CustomerID: c, BillingPeriod: nov, ChargeID: "ch_two", Money: usd, Reason: "a second success for a bill that is paid by ch_3Nv"},
		domain.RefundProposalDismissed{CustomerID: c, BillingPeriod: nov, ChargeID: "ch_two", Reason: "it paid an older invoice"},
		domain.ChargeDisputed{
			CustomerID: c, BillingPeriod: nov, DisputeID: "dp_3Nv", ChargeID: "ch_3Nv", Money: usd, Status: "needs_response", Reason: "fraudulent", Source: domain.SourceEvents,
		},
		domain.RunPaused{BillingPeriod: nov, At: at, Reason: "the spend cap is reached", Refusal: &domain.RunRefusal{
			Code: "spend_cap_exceeded", Currency: "usd", AskedMinor: 4900, VaultKey: "9f2c41d07ab34e6f", CapMinor: new(int64(60_000)), LeftMinor: new(int64(400)),
		}},
		domain.RunResumed{BillingPeriod: nov, At: at, Reason: "the cap was raised"},
		domain.RunClosed{
			BillingPeriod: nov, At: at, ReconciliationID: 12, AsOf: "AeoHAAAB", ReportSHA256: strings.Repeat("5e", 32), BillsSHA256: strings.Repeat("b1", 32),
			Totals: []domain.RunReportTotal{{Currency: "usd", Bills: 2, Expected: 9800, Paid: 4900, Closed: 4900, Taken: 4900, Refunded: 100, Refunds: 1}},
		},
	}
	byName := map[string]domain.Event{}
	for _, e := range facts {
		byName[e.EventName()] = e
	}
	return byName
}

// Each fact has a file that shows how it is stored. It is written once, when
// the fact is new, and never edited: what was stored so must be read for ever.
func TestGoldenEvents(t *testing.T) {
	t.Parallel()
	codec, sample := eventstore.Current(), samples()
	files, err := filepath.Glob("testdata/events/*.json")
	if err != nil {
		t.Fatal(err)
	}
	var stored []eventstore.Shape
	for _, file := range files {
		shape := shapeOf(t, file)
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := codec.Decode(shape.Name, shape.Version, golden); err != nil {
			t.Errorf("%s was stored, and this build cannot read it any more: %v", shape, err)
		}
		stored = append(stored, shape)
	}
	for _, older := range codec.Older() {
		if !slices.Contains(stored, older) {
			t.Errorf("%s has no golden file: %s shows how it was stored", older, goldenFile(older))
		}
	}
	for fact := range domain.Events() {
		name := fact.EventName()
		e, ok := sample[name]
		if !ok {
			t.Errorf("%s has no sample", name)
			continue
		}
		shown, later := e, since()[name]
		if later != nil {
			shown = later
		}
		if field := unfilled(reflect.ValueOf(shown)); field != "" {
			t.Errorf("%s: the sample leaves %s empty, so that nobody would see how it is stored", name, field)
		}
		_, version, _, err := codec.Encode(e)
		if err != nil {
			t.Error(err)
			continue
		}
		file := goldenFile(eventstore.Shape{Name: name, Version: version})
		checkGolden(t, codec, e, filepath.Join("testdata", "events", file))
		if later != nil {
			checkGolden(t, codec, later, filepath.Join("testdata", "events", "since", file))
		}
	}
}

// goldenFile is the name of a shape's file: customer.billed.v1.json, or of a
// higher schema version customer.billed.v1@2.json.
func goldenFile(s eventstore.Shape) string {
	if s.Version == 1 {
		return s.Name + ".json"
	}
	return fmt.Sprintf("%s@%d.json", s.Name, s.Version)
}

func shapeOf(t *testing.T, file string) eventstore.Shape {
	t.Helper()
	name, version, higher := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".json"), "@")
	if !higher {
		return eventstore.Shape{Name: name, Version: 1}
	}
	v, err := strconv.ParseInt(version, 10, 16)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return eventstore.Shape{Name: name, Version: int16(v)}
}

// since are samples of facts that have got a field since their golden file was
// written. They have a golden file of their own.
func since() map[string]domain.Event {
	recorded := samples()[domain.RefundRecorded{}.EventName()].(domain.RefundRecorded)
	recorded.State, recorded.AtStripe = domain.RefundStateReview, domain.RefundStateSucceeded
	return map[string]domain.Event{recorded.EventName(): recorded}
}

func checkGolden(t *testing.T, codec *eventstore.Codec, e domain.Event, file string) {
	t.Helper()
	name := e.EventName()
	stored, schema, payload, err := codec.Encode(e)
	if shape := (eventstore.Shape{Name: stored, Version: schema}); err != nil || shape != shapeOf(t, file) {
		t.Errorf("%s is encoded as %s, %v; its file is %s", name, shape, err, file)
		return
	}
	golden, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) && *update {
		golden = append(slices.Clone([]byte(payload)), '\n')
		err = os.WriteFile(file, golden, 0o644)
	}
	if err != nil {
		t.Errorf("%s has no golden file; -update writes it: %v", name, err)
		return
	}
	golden = []byte(strings.TrimSuffix(string(golden), "\n"))
	if string(payload) != string(golden) {
		t.Errorf("%s is encoded\n%s, it used to be\n%s", name, payload, golden)
	}
	decoded, err := codec.Decode(name, schema, golden)
	if err != nil || !reflect.DeepEqual(decoded, []domain.Event{e}) {
		t.Errorf("%s is decoded\n%+v (%v), want\n%+v", name, decoded, err, e)
	}
}

// unfilled is the name of a field of v that is zero, if there is one.
func unfilled(v reflect.Value) string {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch {
		case f.Anonymous && f.Type.NumField() > 0:
			if name := unfilled(v.Field(i)); name != "" {
				return name
			}
		case !f.Anonymous && v.Field(i).IsZero():
			return f.Name
		}
	}
	return ""
}

// What an older build left out, and what a newer one adds without raising the
// schema version, does no harm.
func TestDecodeIsForgiving(t *testing.T) {
	t.Parallel()
	codec := eventstore.NewCodec(domain.Events())
	e, err := codec.Decode("customer.billed.v1", 1, json.RawMessage(`{"customer_id":"ada","billing_period":"2026-11","attempt":1,"charge_id":"ch_1","amount_minor":1,"currency":"usd","source":"answer","a_field_of_tomorrow":[1]}`))
	if err != nil || len(e) != 1 {
		t.Fatalf("decoded %+v, %v", e, err)
	}
	if billed, ok := e[0].(domain.CustomerBilled); !ok || billed.ChargeID != "ch_1" || billed.IntentID != "" || billed.Recovered {
		t.Errorf("decoded %+v, %v", e, err)
	}
	for _, payload := range []string{``, `{`, `[]`, `"x"`, `{"customer_id":7}`, `{"customer_id":"ada","billing_period":"2026-1"}`, `{"attempt":1.5}`} {
		if e, err := codec.Decode("customer.billed.v1", 1, json.RawMessage(payload)); err == nil {
			t.Errorf("%s is decoded as %+v", payload, e)
		}
	}
}

func TestUnknownEvents(t *testing.T) {
	t.Parallel()
	codec := eventstore.NewCodec(domain.Events())
	for _, c := range []struct {
		name   string
		schema int16
	}{{"customer.billed.v2", 1}, {"customer.billed.v1", 2}, {"customer.billed.v1", 0}, {"customer.billed.v1", -1}, {"", 1}} {
		e, err := codec.Decode(c.name, c.schema, json.RawMessage(`{}`))
		unknown, ok := errors.AsType[*eventstore.UnknownEvent](err)
		if e != nil || !ok || unknown.Type != c.name || unknown.SchemaVersion != c.schema {
			t.Errorf("%s, schema version %d: %+v, %v", c.name, c.schema, e, err)
		}
	}
	small := eventstore.NewCodec(slices.Values([]domain.Event{domain.BillSettled{}}))
	if _, _, _, err := small.Encode(domain.BillWrittenOff{}); err == nil {
		t.Error("a fact outside the catalogue was encoded")
	}
	mustPanic(t, "two facts of one name", func() { eventstore.NewCodec(slices.Values([]domain.Event{domain.BillSettled{}, domain.BillSettled{}})) })
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}
