package commands

import (
	"cmp"
	"strconv"

	"github.com/billonce/billonce/domain"
)

// RecordChargeOutcome reports what Stripe did. It reports what has already
// happened, so it is never refused: news that fits nothing is recorded as a
// surprise and left to be reconciled.
type RecordChargeOutcome struct {
	key           domain.Key
	CustomerID    domain.CustomerID   `json:"customer_id"`
	BillingPeriod domain.Period       `json:"billing_period"`
	Attempt       int                 `json:"attempt"`
	Start         int                 `json:"-"`
	Class         domain.OutcomeClass `json:"class"`
	Reference     string              `json:"reference"` // the Stripe charge or intent of a definite outcome
	Outcome       domain.Outcome      `json:"-"`         // wording and evidence may differ from path to path
}

// NewRecordChargeOutcome builds the command. Paid and declined are keyed by
// the charge at Stripe, so that every path that learns of it sends the same
// command; outcomes that can happen again carry the start they happened in.
func NewRecordChargeOutcome(c domain.CustomerID, p domain.Period, attempt, start int, o domain.Outcome) RecordChargeOutcome {
	cmd := RecordChargeOutcome{CustomerID: c, BillingPeriod: p, Attempt: max(attempt, 1), Start: start, Class: o.Class, Outcome: o}
	charge := string(domain.ChargeKey(c, p, cmd.Attempt))
	reference := cmp.Or(o.ChargeID, o.IntentID)
	switch {
	case o.Class == domain.Paid, o.Class == domain.Declined && reference != "":
		cmd.Reference = reference
		cmd.key = domain.KeyOf("record-charge-outcome", charge, string(o.Class), reference)
	default:
		cmd.key = domain.KeyOf("record-charge-outcome", charge, strconv.Itoa(start), string(o.Class))
	}
	return cmd
}

func (RecordChargeOutcome) Name() string              { return "record-charge-outcome" }
func (c RecordChargeOutcome) Key() domain.Key         { return c.key }
func (c RecordChargeOutcome) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c RecordChargeOutcome) Decide(s domain.Customer) ([]domain.Event, error) {
	bill, known := s.Bill(c.BillingPeriod)
	if c.Class == domain.Paid {
		return c.paid(s, bill, known), nil
	}
	current := known && bill.Attempt == c.Attempt && !bill.Status.Final()
	if c.Class == domain.Declined {
		return c.declined(bill, current), nil
	}
	// A closing may meet that Stripe does not know the intent which it would cancel.
	unclosed := c.Class == domain.NeedsReview && bill.Status == domain.BillClosingStatus
	if !current || c.Start != bill.Start || !bill.InFlight() && !unclosed {
		return nil, nil // an older start's news about something that is not decided: the newer start will tell
	}
	report := c.report(c.Outcome.Reason)
	switch c.Class {
	case domain.ActionRequired:
		return one(domain.ChargeActionRequired{ChargeReport: report}), nil
	case domain.NeedsReview:
		return one(domain.ChargeNeedsReview{ChargeReport: report}), nil
	case domain.Rejected, domain.Held, domain.RetrySameKey:
		if bill.Unresolved {
			// A no clears only its own request: an earlier send of this attempt may
			// still have moved money.
			report.Reason = "an earlier send is unresolved; this one: " + report.Reason
			return one(domain.ChargeUnknown{ChargeReport: report}), nil
		}
		switch c.Class {
		case domain.Rejected:
			return one(domain.ChargeRejected{ChargeReport: report}), nil
		case domain.Held:
			return one(domain.ChargeHeld{ChargeReport: report}), nil
		}
		return one(domain.ChargeNotSent{ChargeReport: report}), nil
	}
	return one(domain.ChargeUnknown{ChargeReport: report}), nil
}

// paid records a success, in whatever state the bill is. If the money is not
// owed (a second success, or one after the bill was settled or the subscription
// cancelled), a refund is proposed; giving it back is a person's decision.
func (c RecordChargeOutcome) paid(s domain.Customer, bill domain.Bill, known bool) []domain.Event {
	if bill.Status == domain.BillPaid {
		nameless := bill.ChargeID == "" || c.Outcome.ChargeID == ""
		if bill.ChargeID == c.Outcome.ChargeID || nameless && bill.IntentID == c.Outcome.IntentID {
			return nil // told again
		}
		second := "a second success for a bill that is paid by " + bill.ChargeID
		return append(one(domain.ChargeOutcomeSurprise{ChargeReport: c.report(second)}), c.surplus(s, second)...)
	}
	billed := domain.CustomerBilled{
		CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: c.Attempt,
		ChargeID: c.Outcome.ChargeID, IntentID: c.Outcome.IntentID, Money: c.Outcome.Money,
		Source: c.Outcome.Source, Recovered: c.Outcome.Recovered || !known || bill.Attempt == 0,
	}
	events := one(billed)
	switch {
	case bill.Status.Final():
		although := "paid although the bill was " + string(bill.Status)
		events = append(events, domain.ChargeOutcomeSurprise{ChargeReport: c.report(although)})
		if bill.Status != domain.BillWrittenOffStatus && bill.Status != domain.BillUncollectibleStatus { // these were owed
			events = append(events, c.surplus(s, although)...)
		}
	case bill.Cancelled:
		although := "paid although the subscription was cancelled meanwhile"
		events = append(events, domain.ChargeOutcomeSurprise{ChargeReport: c.report(although)})
		events = append(events, c.surplus(s, although)...)
	}
	if known && bill.Amount.Minor != 0 && bill.Amount != c.Outcome.Money {
		events = append(events, domain.ChargeOutcomeSurprise{ChargeReport: c.report("paid " + c.Outcome.Money.String() + " instead of " + bill.Amount.String())})
	}
	return events
}

func (c RecordChargeOutcome) surplus(s domain.Customer, reason string) []domain.Event {
	return propose(s.MoneyBack(c.BillingPeriod), c.CustomerID, c.Outcome.ChargeID, c.Outcome.Money, reason)
}

// declined records a decline of the attempt under way. A late one of an older
// attempt, or one that comes after a success, undoes nothing.
func (c RecordChargeOutcome) declined(bill domain.Bill, current bool) []domain.Event {
	if !current || !bill.InFlight() && bill.Status != domain.BillHeld {
		if bill.Status == domain.BillPaid {
			return one(domain.ChargeOutcomeSurprise{ChargeReport: c.report("a decline for a bill that is paid")})
		}
		return nil
	}
	return one(domain.ChargeDeclined{
		CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: c.Attempt, ChargeID: c.Outcome.ChargeID,
		Code: c.Outcome.Code, DeclineCode: c.Outcome.DeclineCode, Class: domain.ClassifyDecline(c.Outcome.Code, c.Outcome.DeclineCode),
	})
}

func (c RecordChargeOutcome) report(reason string) domain.ChargeReport {
	return domain.ChargeReport{
		CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: c.Attempt, Start: c.Start,
		Reason: reason, Evidence: c.Outcome.Evidence,
	}
}

func one(e domain.Event) []domain.Event { return []domain.Event{e} }
