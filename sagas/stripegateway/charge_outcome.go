package stripegateway

import (
	"strings"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// chargeOutcome is the outcome table for a legacy charge: what the charge
// itself tells, and else the same rows as a confirm's.
func chargeOutcome(o sagas.Order, a answer, c *charge) domain.Outcome {
	if a.fault != noFault || a.status < 200 || a.status >= 300 {
		return refusal(a)
	}
	if chargeID(c.ID) == "" {
		return unknown("the answer shows no charge", quiet, a, nil)
	}
	return c.shown(o, a, domain.SourceAnswer)
}

// shown is the outcome that the charge's state tells.
func (c *charge) shown(o sagas.Order, a answer, source domain.Source) domain.Outcome {
	a.chargeID, a.chargeStatus = chargeID(c.ID), plain(c.Status)
	if wrong := c.contradictions(o); len(wrong) > 0 {
		return review("the charge differs from the order: "+strings.Join(wrong, ", "), a, nil)
	}
	switch {
	case c.Status == statusSucceeded && c.Paid && c.Captured:
		return domain.Outcome{
			Class: domain.Paid, ChargeID: c.ID, IntentID: intentID(string(c.Intent)), Money: domain.Money{Minor: c.Amount, Currency: domain.Currency(c.Currency)},
			Source: source, Evidence: a.evidence(nil),
		}
	case c.Status == statusSucceeded && c.Paid:
		return review("the payment is authorised and was not captured", a, nil)
	case c.Status == "failed" && source == domain.SourceFind:
		a.code, a.declineCode = c.failureCodes()
		return domain.Outcome{
			Class: domain.Declined, ChargeID: c.ID, Code: a.code, DeclineCode: a.declineCode,
			Source: source, Reason: "the payment was declined", Evidence: a.evidence(nil),
		}
	case c.Status == "pending":
		return unknown("the charge is pending", quiet, a, nil)
	}
	return unknown("the charge is in an unlisted state", quiet, a, nil)
}

// foundCharges is the table for a read: what the charges that carry the bill's
// markers say about the attempt.
func foundCharges(o sagas.Order, made []*charge, a answer) sagas.Finding {
	var newest, first *charge // of all; of those that took money, or hold it
	former := o.LatestCharge == ""
	for _, c := range made { // newest first, as lists are
		if newest == nil || c.Created > newest.Created {
			newest = c
		}
		if c.Status == statusSucceeded {
			first = c
		}
		former = former || c.ID == o.LatestCharge
	}
	f := sagas.Finding{State: sagas.IntentDecided}
	if newest != nil {
		f.LatestCharge = newest.ID
	}
	switch {
	case first != nil:
		f.Outcome = first.shown(o, a, domain.SourceFind)
		return f
	case !former:
		f.State = sagas.IntentUnreachable
		f.Outcome = unknown("the list no longer shows the former charge", quiet, a, nil)
		return f
	case newest == nil || newest.ID == o.LatestCharge:
		f.State = sagas.IntentUnchanged
		f.Outcome = unknown("no charge of the attempt is listed", quiet, a, nil)
		return f
	}
	f.Outcome = newest.shown(o, a, domain.SourceFind)
	switch {
	case newest.Status == "pending":
		f.State = sagas.IntentProcessing
	case f.Outcome.Class == domain.Unknown:
		f.State = sagas.IntentUnreachable
	}
	return f
}

// markedFor tells whether the charge carries the bill's markers.
func (c *charge) markedFor(o sagas.Order) bool {
	for name, value := range o.Markers() {
		if c.Metadata[name] != value {
			return false
		}
	}
	return true
}

// contradictions names the fields in which the charge is not the one that the
// order asks for. A charge that names no customer is known by its markers.
func (c *charge) contradictions(o sagas.Order) []string {
	var wrong []string
	if c.Amount != o.Amount.Minor {
		wrong = append(wrong, "amount")
	}
	if c.Currency != string(o.Amount.Currency) {
		wrong = append(wrong, "currency")
	}
	if c.Customer != "" && string(c.Customer) != o.StripeCustomerID {
		wrong = append(wrong, "customer")
	}
	if !c.markedFor(o) {
		wrong = append(wrong, "metadata")
	}
	return wrong
}

// failureCodes are the codes of a failed charge.
func (c *charge) failureCodes() (code, declineCode string) {
	if c.Outcome != nil && c.Outcome.Reason != c.FailureCode {
		declineCode = plain(c.Outcome.Reason)
	}
	return plain(c.FailureCode), declineCode
}
