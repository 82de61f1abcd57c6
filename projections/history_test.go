package projections_test

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

var (
	november = period("2026-11")
	december = period("2026-12")
	fifty    = domain.Money{Minor: 5000, Currency: "usd"}
	noon     = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
)

func period(s string) domain.Period {
	p, err := domain.ParsePeriod(s)
	if err != nil {
		panic(err)
	}
	return p
}

// lawful draws a history that the commands allow: what may really happen to a
// customer.
func lawful(t *rapid.T, id domain.CustomerID) []domain.Event {
	periods := []domain.Period{november, december, november, period("2027-01")}
	steps := map[string]func(i int, p domain.Period, b domain.Bill) commands.Command[domain.Customer]{
		"activate": func(int, domain.Period, domain.Bill) commands.Command[domain.Customer] {
			return commands.NewActivateSubscription(id, fifty, domain.Schedule{
				Cadence: domain.Monthly, AnchorDay: 31, TimeZone: "Europe/Berlin", StartsOn: domain.Date{Year: 2026, Month: 11, Day: 1},
			})
		},
		"amount": func(i int, p domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.NewChangeSubscriptionAmount(id, int64(5000+100*i), "usd", p, noon, key(i))
		},
		"method": func(i int, _ domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.NewChangePaymentMethod(id, fmt.Sprintf("pm_%d", i), time.Time{}, key(i))
		},
		"pause": func(i int, _ domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.NewPauseSubscription(id, "asked for", noon, key(i))
		},
		"resume": func(i int, _ domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.NewResumeSubscription(id, noon.AddDate(0, i%3, 0), key(i))
		},
		"cancel": func(i int, _ domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			mode := domain.CancelPeriodEnd
			if i%2 == 0 {
				mode = domain.CancelNow
			}
			return commands.NewCancelSubscription(id, mode, "moved away", noon, key(i))
		},
		"due": func(_ int, p domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.NewDeclareBillingDue(id, p)
		},
		"charge": func(_ int, p domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.NewChargeBilling(id, p, fifty)
		},
		"retry": func(_ int, p domain.Period, b domain.Bill) commands.Command[domain.Customer] {
			return commands.NewRetryCharge(id, p, b.Attempt+1, commands.StepManual)
		},
		"start": func(_ int, p domain.Period, b domain.Bill) commands.Command[domain.Customer] {
			return commands.StartAttempt{CustomerID: id, BillingPeriod: p, Attempt: b.Attempt}
		},
		"intent": func(i int, p domain.Period, b domain.Bill) commands.Command[domain.Customer] {
			return commands.CommitIntent{CustomerID: id, BillingPeriod: p, IntentID: fmt.Sprintf("pi_%d", i), Replaces: b.IntentID, Adopted: i%5 == 0}
		},
		"settle": func(i int, p domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.NewSettleBilling(id, p, "wire 7", key(i))
		},
		"write off": func(i int, p domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.NewWriteOffBilling(id, p, "gone", key(i))
		},
		"close": func(_ int, p domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.CompleteClosing{CustomerID: id, BillingPeriod: p}
		},
		"refund": func(i int, p domain.Period, b domain.Bill) commands.Command[domain.Customer] {
			charge := ""
			if i%4 == 0 {
				charge = fmt.Sprintf("ch_%d", i-1)
			}
			return commands.NewRefundCharge(id, p, fmt.Sprintf("r-%d", i%7), int64(1000+i), charge)
		},
		"refund news": func(i int, p domain.Period, b domain.Bill) commands.Command[domain.Customer] {
			o := domain.RefundOutcome{
				State: rapid.SampledFrom([]domain.RefundState{
					domain.RefundStateUnknown, domain.RefundStatePending, domain.RefundStateSucceeded, domain.RefundStateFailed, domain.RefundStateRefused, domain.RefundStateRequested,
				}).Draw(t, "refund state"),
				Reason: fmt.Sprintf("reason %d", i), Evidence: "req_1", Source: domain.SourceFind,
			}
			refundID := fmt.Sprintf("r-%d", i%7)
			switch o.State {
			case domain.RefundStatePending, domain.RefundStateSucceeded, domain.RefundStateFailed:
				o.StripeRefundID, o.ChargeID, o.Money = "re_"+refundID, b.ChargeID, domain.Money{Minor: int64(1000 + i), Currency: "usd"}
				if i%5 == 0 {
					refundID, o.StripeRefundID = "", "re_outside"
				}
			}
			return commands.NewRecordRefundOutcome(id, p, refundID, o)
		},
		"propose": func(i int, p domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.NewProposeRefund(id, p, fmt.Sprintf("ch_%d", i-1), fifty, "found by the reconciler")
		},
		"dismiss": func(i int, p domain.Period, _ domain.Bill) commands.Command[domain.Customer] {
			return commands.NewDismissRefundProposal(id, p, fmt.Sprintf("ch_%d", i-2), "it is owed", key(i))
		},
		"dispute": func(i int, p domain.Period, b domain.Bill) commands.Command[domain.Customer] {
			return commands.NewRecordDispute(id, p, domain.DisputeNews{
				DisputeID: fmt.Sprintf("dp_%d", i%2), ChargeID: b.ChargeID, Status: rapid.SampledFrom([]string{"needs_response", "won", "lost"}).Draw(t, "dispute"), Money: fifty,
			})
		},
		"outcome": func(i int, p domain.Period, b domain.Bill) commands.Command[domain.Customer] {
			class := rapid.SampledFrom([]domain.OutcomeClass{
				domain.Paid, domain.Declined, domain.ActionRequired, domain.Rejected, domain.RetrySameKey, domain.Held, domain.Unknown, domain.NeedsReview,
			}).Draw(t, "class")
			o := domain.Outcome{Class: class, Reason: "because " + string(class), Evidence: "req_1"}
			if class == domain.Paid || class == domain.Declined {
				o.ChargeID, o.IntentID, o.Money = fmt.Sprintf("ch_%d", i), b.IntentID, fifty
				o.Code, o.DeclineCode, o.Source = "card_declined", "insufficient_funds", domain.SourceAnswer
			}
			attempt := b.Attempt
			if class == domain.Paid && i%3 == 0 {
				attempt = 1 // a late success of the first
			}
			return commands.NewRecordChargeOutcome(id, p, attempt, b.Start, o)
		},
	}
	// What moves a bill on comes up often, so that histories get somewhere.
	names := []string{
		"activate", "due", "charge", "charge", "start", "start", "start", "intent", "outcome", "outcome", "outcome", "outcome", "retry", "retry",
		"amount", "method", "pause", "resume", "resume", "cancel", "settle", "write off", "close",
		"refund", "refund", "refund", "refund news", "refund news", "refund news", "propose", "propose", "dismiss", "dispute",
	}
	history, state := []domain.Event{}, domain.Customer{}
	do := func(c commands.Command[domain.Customer]) {
		events, _ := c.Decide(state) // a refusal adds nothing
		for _, e := range events {
			state = state.Evolve(e)
		}
		history = append(history, events...)
	}
	do(commands.NewRegisterCustomer(id, "cus_1", "pm_0"))
	for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
		p := rapid.SampledFrom(periods).Draw(t, "period")
		bill, _ := state.Bill(p)
		do(steps[rapid.SampledFrom(names).Draw(t, "step")](i, p, bill))
	}
	return history
}

func key(i int) domain.Key { return domain.Key(fmt.Sprintf("key-%d", i)) }

// anyhow draws facts in any order, possible or not: a read model must agree
// with the domain about those too.
func anyhow(t *rapid.T, id domain.CustomerID) (history []domain.Event) {
	for i := range rapid.IntRange(1, 30).Draw(t, "facts") {
		p := rapid.SampledFrom([]domain.Period{november, december, period("2026-Q4")}).Draw(t, "period")
		attempt := rapid.IntRange(0, 3).Draw(t, "attempt")
		minor := rapid.SampledFrom([]int64{5000, 7000}).Draw(t, "minor")
		m := domain.Money{Minor: minor, Currency: rapid.SampledFrom([]domain.Currency{"usd", "jpy"}).Draw(t, "currency")}
		report := domain.ChargeReport{CustomerID: id, BillingPeriod: p, Attempt: attempt, Start: i, Reason: fmt.Sprintf("reason %d", i), Evidence: "req_9"}
		going := domain.RefundOutcome{
			State:          rapid.SampledFrom([]domain.RefundState{domain.RefundStateUnknown, domain.RefundStateSucceeded, domain.RefundStateFailed, "tomorrow"}).Draw(t, "refund state"),
			StripeRefundID: rapid.SampledFrom([]string{"", "re_1", "re_2"}).Draw(t, "refund"), ChargeID: fmt.Sprintf("ch_%d", i%4), Money: m, Reason: fmt.Sprintf("reason %d", i),
		}
		history = append(history, rapid.SampledFrom([]domain.Event{
			domain.CustomerRegistered{CustomerID: id, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
			domain.PaymentMethodChanged{CustomerID: id, PaymentMethodID: "pm_2"},
			domain.HistoryImported{CustomerID: id, BilledThrough: p},
			domain.SubscriptionActivated{CustomerID: id, Money: m, Cadence: domain.Monthly, AnchorDay: 3, TimeZone: "Asia/Tokyo", StartsOn: domain.Date{Year: 2026, Month: 10, Day: 5}},
			domain.SubscriptionAmountChanged{CustomerID: id, AmountMinor: minor, EffectivePeriod: p},
			domain.SubscriptionScheduleChanged{CustomerID: id, AnchorDay: 1 + i%31, EffectivePeriod: p, At: noon},
			domain.SubscriptionScheduleChanged{CustomerID: id, TimeZone: "Pacific/Kiritimati", EffectivePeriod: p, At: noon},
			domain.SubscriptionPaused{CustomerID: id, At: noon, Reason: "rest"},
			domain.SubscriptionResumed{CustomerID: id, At: noon.AddDate(0, 1, 0)},
			domain.SubscriptionCancelled{CustomerID: id, Mode: domain.CancelNow, At: noon},
			domain.SubscriptionCancelled{CustomerID: id, Mode: domain.CancelPeriodEnd, At: noon},
			domain.MonthlyBillingDue{CustomerID: id, BillingPeriod: p, DueAt: noon, Money: m},
			domain.ChargeRequested{CustomerID: id, BillingPeriod: p, Attempt: attempt, Key: domain.ChargeKey(id, p, attempt), Money: m, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
			domain.ChargeAttemptStarted{CustomerID: id, BillingPeriod: p, Attempt: attempt, Start: i},
			domain.ChargeIntentCommitted{CustomerID: id, BillingPeriod: p, IntentID: fmt.Sprintf("pi_%d", i), IntentNo: 1 + i%3, Adopted: i%2 == 0},
			domain.CustomerBilled{CustomerID: id, BillingPeriod: p, Attempt: attempt, ChargeID: fmt.Sprintf("ch_%d", i), Money: m, Source: domain.SourceLook, Recovered: true},
			domain.ChargeDeclined{CustomerID: id, BillingPeriod: p, Attempt: attempt, ChargeID: fmt.Sprintf("ch_%d", i), Code: "card_declined", Class: domain.Soft},
			domain.ChargeActionRequired{ChargeReport: report}, domain.ChargeRejected{ChargeReport: report}, domain.ChargeHeld{ChargeReport: report},
			domain.ChargeNotSent{ChargeReport: report}, domain.ChargeUnknown{ChargeReport: report}, domain.ChargeNeedsReview{ChargeReport: report},
			domain.ChargeOutcomeSurprise{ChargeReport: report},
			domain.ChargeWaiting{CustomerID: id, BillingPeriod: p, Attempt: attempt, Reason: "paused"},
			domain.ChargeWaiting{CustomerID: id, BillingPeriod: p, Attempt: attempt, Reason: domain.ReasonPerhapsSettled},
			domain.ChargeReleased{CustomerID: id, BillingPeriod: p, Reason: "not settled"},
			domain.ChargeVoided{CustomerID: id, BillingPeriod: p, Attempt: attempt, Reason: "cancelled"},
			domain.BillClosing{CustomerID: id, BillingPeriod: p, Mode: domain.ClosingSettled, Reference: "wire", Reason: "settle"},
			domain.BillSettled{CustomerID: id, BillingPeriod: p, Reference: "wire 1"},
			domain.BillWrittenOff{CustomerID: id, BillingPeriod: p, Reason: "gone"},
			domain.RefundRequested{CustomerID: id, BillingPeriod: p, RefundID: fmt.Sprintf("r-%d", i%3), ChargeID: fmt.Sprintf("ch_%d", i%4), Key: "k", Money: m},
			domain.RefundRecorded{CustomerID: id, BillingPeriod: p, RefundID: fmt.Sprintf("r-%d", i%3), RefundOutcome: going},
			domain.RefundRecorded{CustomerID: id, BillingPeriod: p, RefundOutcome: going},
			domain.RefundProposed{CustomerID: id, BillingPeriod: p, ChargeID: fmt.Sprintf("ch_%d", i%4), Money: m, Reason: fmt.Sprintf("reason %d", i)},
			domain.RefundProposalDismissed{CustomerID: id, BillingPeriod: p, ChargeID: fmt.Sprintf("ch_%d", i%4), Reason: "owed"},
			domain.ChargeDisputed{CustomerID: id, BillingPeriod: p, DisputeID: fmt.Sprintf("dp_%d", i%2), ChargeID: "ch_1", Money: m, Status: "lost", Reason: "fraudulent"},
		}).Draw(t, "fact"))
	}
	return history
}
