package commands

import "github.com/billonce/billonce/domain"

// RecordRefundOutcome reports where a refund stands at Stripe. It reports what
// has already happened, so it is never refused, and what is older than what is
// known changes nothing.
type RecordRefundOutcome struct {
	key            domain.Key
	CustomerID     domain.CustomerID    `json:"customer_id"`
	BillingPeriod  domain.Period        `json:"billing_period"`
	RefundID       string               `json:"refund_id"` // empty: made outside Billonce
	StripeRefundID string               `json:"stripe_refund_id"`
	State          domain.RefundState   `json:"state"`
	Outcome        domain.RefundOutcome `json:"-"` // wording and evidence may differ from path to path
}

// NewRecordRefundOutcome builds the command. An empty refundID means a refund
// that was made outside Billonce; its Stripe id says which one. What Stripe
// shows of a refund is keyed by the refund and its state, so that every path
// that learns of it sends the same command. What is only known of a send
// (requested, unknown, refused) can be so more than once: it has no key and is
// decided in a transaction, by [Dispatcher.Begin].
func NewRecordRefundOutcome(c domain.CustomerID, p domain.Period, refundID string, o domain.RefundOutcome) RecordRefundOutcome {
	cmd := RecordRefundOutcome{CustomerID: c, BillingPeriod: p, RefundID: refundID, StripeRefundID: o.StripeRefundID, State: o.State, Outcome: o}
	switch o.State {
	case domain.RefundStateRequested, domain.RefundStateUnknown, domain.RefundStateRefused:
	default:
		cmd.key = domain.KeyOf("record-refund-outcome", string(c), p.String(), refundID, o.StripeRefundID, string(o.State))
	}
	return cmd
}

func (RecordRefundOutcome) Name() string              { return "record-refund-outcome" }
func (c RecordRefundOutcome) Key() domain.Key         { return c.key }
func (c RecordRefundOutcome) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c RecordRefundOutcome) Decide(s domain.Customer) ([]domain.Event, error) {
	if c.RefundID == "" && c.Outcome.StripeRefundID == "" {
		return nil, nil // about nothing that could be told apart
	}
	back := s.MoneyBack(c.BillingPeriod)
	known, met := back.Refund(c.RefundID, c.Outcome.StripeRefundID)
	if met && c.differs(known) {
		c = c.review(known)
	}
	if met && !c.changes(known) {
		return nil, nil
	}
	if !met && c.RefundID != "" && c.Outcome.StripeRefundID == "" {
		return nil, nil // a send that the log had not asked for, and that has moved nothing
	}
	recorded := domain.RefundRecorded{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, RefundID: c.RefundID, RefundOutcome: c.Outcome}
	if met && recorded.RefundID == "" {
		recorded.RefundID = known.RefundID
	}
	events := one(recorded)
	if reason := c.surprise(back, known, met); reason != "" {
		bill, _ := s.Bill(c.BillingPeriod)
		events = append(events, domain.ChargeOutcomeSurprise{ChargeReport: domain.ChargeReport{
			CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: bill.Attempt, Start: bill.Start, Reason: reason, Evidence: c.Outcome.Evidence,
		}})
	}
	return events, nil
}

// differs reports whether what Stripe has under the refund's name is something
// else than what was asked for. It is taken over as what it is, never as the
// refund itself, and stays so until a person has spoken.
func (c RecordRefundOutcome) differs(known domain.Refund) bool {
	o := c.Outcome
	switch o.State {
	case domain.RefundStatePending, domain.RefundStateSucceeded, domain.RefundStateReview:
	default:
		return false
	}
	return known.State == domain.RefundStateReview || known.RefundID != "" && o.StripeRefundID != "" && o.Money.Minor != 0 &&
		(o.Money != known.Amount || o.ChargeID != "" && known.ChargeID != "" && o.ChargeID != known.ChargeID)
}

// review is the command about a refund that differs.
func (c RecordRefundOutcome) review(known domain.Refund) RecordRefundOutcome {
	o := &c.Outcome
	if o.State != domain.RefundStateReview {
		o.State, o.AtStripe = domain.RefundStateReview, o.State
	}
	o.Reason = known.Reason
	if known.State != domain.RefundStateReview {
		o.Reason = "Stripe gives back " + o.Money.String() + " of " + o.ChargeID + "; asked for was " + known.Amount.String() + " of " + known.ChargeID
	}
	return c
}

// changes reports whether the news moves a refund that is known. One that needs
// a person's word is moved by that word ([AcceptRefund]), or by Stripe's that it
// came to nothing. Else a refund goes
// requested, unknown, pending, succeeded, failed or cancelled, and never back,
// so that news in any order leads to the same end. Between requested and
// unknown it goes both ways: an unknown send returns to requested only by what
// a read of Stripe proves, since a no clears only its own request.
func (c RecordRefundOutcome) changes(known domain.Refund) bool {
	to, from := c.Outcome.State, known.State
	if from == domain.RefundStateReview {
		return to == domain.RefundStateFailed || to == domain.RefundStateCancelled ||
			to == from && refundRank(c.Outcome.AtStripe) > refundRank(known.AtStripe)
	}
	if c.Outcome.StripeRefundID != "" && known.StripeRefundID == "" && refundRank(to) >= refundRank(from) {
		return true
	}
	if to == from {
		return false
	}
	switch to {
	case domain.RefundStateRequested:
		return from == domain.RefundStateUnknown && c.Outcome.Source == domain.SourceFind
	case domain.RefundStateRefused:
		return from == domain.RefundStateRequested
	}
	return refundRank(to) > refundRank(from)
}

// refundRank orders the states by how far a refund has come. A refusal ranks
// below what Stripe shows: if Stripe has the refund after all, that holds.
func refundRank(s domain.RefundState) int {
	switch s {
	case domain.RefundStateRequested:
		return 0
	case domain.RefundStatePending:
		return 3
	case domain.RefundStateSucceeded:
		return 4
	case domain.RefundStateFailed, domain.RefundStateCancelled:
		return 5
	case domain.RefundStateReview:
		return 4
	case domain.RefundStateRefused:
		return 2
	}
	return 1 // unknown, and every word of tomorrow
}

// surprise says what contradicts what is recorded, if something does.
func (c RecordRefundOutcome) surprise(back domain.MoneyBack, known domain.Refund, met bool) string {
	if !c.Outcome.State.Counts() {
		return ""
	}
	if !met && c.RefundID != "" {
		if other, twice := back.Refund(c.RefundID, ""); twice {
			return "a second refund at Stripe under refund id " + c.RefundID + ", beside " + other.StripeRefundID
		}
		return "a refund under refund id " + c.RefundID + " that the log had not asked for"
	}
	if met && known.State == domain.RefundStateRefused {
		return "refund " + c.RefundID + " is at Stripe although it had been refused"
	}
	if met && c.Outcome.Money.Minor != 0 && known.Amount != c.Outcome.Money {
		return "refunded " + c.Outcome.Money.String() + " instead of " + known.Amount.String()
	}
	if taken, ok := back.TakenBy(c.Outcome.ChargeID); ok && !met && c.Outcome.Money.Minor > taken.Minor-back.Refunded(c.Outcome.ChargeID) {
		return "more goes back than the charge took, which was " + taken.String()
	}
	return ""
}
