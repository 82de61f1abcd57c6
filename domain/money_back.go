package domain

import (
	"iter"
	"math"
	"slices"
	"sort"
)

// MoneyBack is what went back of one bill's money, what may have to, and who
// fights over it. It stands beside the bill: a refunded bill stays billed. It
// is a value; its lists are never changed in place.
type MoneyBack struct {
	Period    Period           `json:"period"`
	ChargeID  string           `json:"charge_id,omitempty"` // the charge that paid the bill
	Taken     Money            `json:"taken"`               // by that charge
	Refunds   []Refund         `json:"refunds,omitempty"`   // in the order in which they became known
	Proposals []RefundProposal `json:"proposals,omitempty"`
	Disputes  []Dispute        `json:"disputes,omitempty"`
}

// Refund is one refund of a charge.
type Refund struct {
	RefundID       string      `json:"refund_id,omitempty"` // the caller's; empty: made outside Billonce
	StripeRefundID string      `json:"stripe_refund_id,omitempty"`
	ChargeID       string      `json:"charge_id,omitempty"`
	Amount         Money       `json:"amount"`
	State          RefundState `json:"state"`
	AtStripe       RefundState `json:"at_stripe,omitempty"` // of one that needs review: how it stands there
	Reason         string      `json:"reason,omitempty"`    // of the state
}

// Counts reports whether a refund in this state takes room from its charge:
// the money went back, or may have, or will. Whatever is not proven to have
// moved nothing counts.
func (s RefundState) Counts() bool {
	switch s {
	case RefundStateFailed, RefundStateCancelled, RefundStateRefused:
		return false
	}
	return true
}

// RefundProposal is a charge that has taken money which is not owed.
type RefundProposal struct {
	ChargeID  string `json:"charge_id"`
	Amount    Money  `json:"amount"`
	Reason    string `json:"reason,omitempty"`
	Dismissed string `json:"dismissed,omitempty"` // why the money stays
}

// Dispute is a cardholder's complaint about a charge.
type Dispute struct {
	DisputeID string `json:"dispute_id"`
	ChargeID  string `json:"charge_id,omitempty"`
	Amount    Money  `json:"amount"`
	Status    string `json:"status"`
	Reason    string `json:"reason,omitempty"`
}

// DisputeNews is where a dispute stands, as Stripe tells it.
type DisputeNews struct {
	DisputeID, ChargeID, Status, Reason string
	Money                               Money
	Source                              Source
}

// over reports whether the dispute holds no money any more: it was won, closed
// without a chargeback, or the charge was refunded instead.
func (d Dispute) over() bool {
	switch d.Status {
	case "won", "warning_closed", "charge_refunded", "prevented":
		return true
	}
	return false
}

// DisputeRank orders a dispute's states by how far they are: news of a lower
// rank is old news. An inquiry (warning_…) may become a dispute, which ends
// won or lost.
func DisputeRank(status string) int {
	switch status {
	case "warning_needs_response":
		return 1
	case "warning_under_review":
		return 2
	case "warning_closed", "prevented":
		return 3
	case "needs_response":
		return 4
	case "under_review":
		return 6
	case "charge_refunded", "won", "lost":
		return 7
	}
	return 5 // a word of tomorrow
}

// Refunded is what of a charge went back or may have, in its currency's minor
// units. It stops at the largest integer.
func (m MoneyBack) Refunded(chargeID string) int64 {
	var sum int64
	for _, r := range m.Refunds {
		if chargeID == "" || r.ChargeID != chargeID || !r.State.Counts() || r.Amount.Minor <= 0 {
			continue
		}
		if sum > math.MaxInt64-r.Amount.Minor {
			return math.MaxInt64
		}
		sum += r.Amount.Minor
	}
	return sum
}

// TakenBy is what a charge took: the bill's own, or one that a proposal names.
func (m MoneyBack) TakenBy(chargeID string) (Money, bool) {
	if chargeID == "" {
		return Money{}, false
	}
	if chargeID == m.ChargeID {
		return m.Taken, true
	}
	p, ok := m.Proposal(chargeID)
	return p.Amount, ok
}

// Proposal is the proposal to refund a charge, if there was ever one.
func (m MoneyBack) Proposal(chargeID string) (RefundProposal, bool) {
	for _, p := range m.Proposals {
		if p.ChargeID == chargeID {
			return p, true
		}
	}
	return RefundProposal{}, false
}

// Open reports whether a proposal waits for a decision: it was not dismissed,
// and nothing of its charge went back or is on its way. A refund that fails
// opens it again.
func (m MoneyBack) Open(p RefundProposal) bool {
	return p.Dismissed == "" && m.Refunded(p.ChargeID) == 0
}

// Disputed reports whether a dispute holds or has taken the bill's money.
func (m MoneyBack) Disputed() bool {
	return slices.ContainsFunc(m.Disputes, func(d Dispute) bool { return !d.over() })
}

// Dispute is what is known of a dispute.
func (m MoneyBack) Dispute(id string) (Dispute, bool) {
	for _, d := range m.Disputes {
		if d.DisputeID == id {
			return d, true
		}
	}
	return Dispute{}, false
}

// Refund is the refund that news is about: by its Stripe id, else by the
// caller's id. Two refunds at Stripe under one refund id are two refunds.
func (m MoneyBack) Refund(refundID, stripeRefundID string) (Refund, bool) {
	if i := m.find(refundID, stripeRefundID); i >= 0 {
		return m.Refunds[i], true
	}
	return Refund{}, false
}

// InReview is the refund under the caller's id that needs an operator's word.
func (m MoneyBack) InReview(refundID string) (Refund, bool) {
	for _, r := range m.Refunds {
		if r.RefundID == refundID && r.State == RefundStateReview {
			return r, true
		}
	}
	return Refund{}, false
}

func (m MoneyBack) find(refundID, stripeRefundID string) int {
	if stripeRefundID != "" {
		if i := slices.IndexFunc(m.Refunds, func(r Refund) bool { return r.StripeRefundID == stripeRefundID }); i >= 0 {
			return i
		}
	}
	if refundID == "" {
		return -1
	}
	return slices.IndexFunc(m.Refunds, func(r Refund) bool {
		return r.RefundID == refundID && (stripeRefundID == "" || r.StripeRefundID == "")
	})
}

// about reports whether e is a fact that MoneyBack evolves by.
func (MoneyBack) about(e Event) bool {
	switch e.(type) {
	case CustomerBilled, RefundRequested, RefundRecorded, RefundProposed, RefundProposalDismissed, ChargeDisputed:
		return true
	}
	return false
}

// Evolve is the bill's money back after e, a fact about its customer. A fact
// about another bill leaves it as it is.
func (m MoneyBack) Evolve(e Event) MoneyBack {
	if _, p, ok := BillOf(e); !ok || p != m.Period {
		return m
	}
	switch e := e.(type) {
	case CustomerBilled:
		m.ChargeID, m.Taken = e.ChargeID, e.Money
	case RefundRequested:
		if m.find(e.RefundID, "") < 0 {
			m.Refunds = with(m.Refunds, -1, Refund{RefundID: e.RefundID, ChargeID: e.ChargeID, Amount: e.Money, State: RefundStateRequested})
		}
	case RefundRecorded:
		i := m.find(e.RefundID, e.StripeRefundID)
		var r Refund
		if i >= 0 {
			r = m.Refunds[i]
		}
		r.State, r.AtStripe, r.Reason = e.State, e.AtStripe, e.Reason
		if r.RefundID == "" {
			r.RefundID = e.RefundID
		}
		set(&r.StripeRefundID, e.StripeRefundID)
		set(&r.ChargeID, e.ChargeID)
		if e.Money.Minor != 0 {
			r.Amount = e.Money
		}
		m.Refunds = with(m.Refunds, i, r)
	case RefundProposed:
		if _, ok := m.Proposal(e.ChargeID); !ok {
			m.Proposals = with(m.Proposals, -1, RefundProposal{ChargeID: e.ChargeID, Amount: e.Money, Reason: e.Reason})
		}
	case RefundProposalDismissed:
		for i, p := range m.Proposals {
			if p.ChargeID == e.ChargeID {
				p.Dismissed = e.Reason
				m.Proposals = with(m.Proposals, i, p)
				break
			}
		}
	case ChargeDisputed:
		i := slices.IndexFunc(m.Disputes, func(d Dispute) bool { return d.DisputeID == e.DisputeID })
		m.Disputes = with(m.Disputes, i, Dispute{e.DisputeID, e.ChargeID, e.Money, e.Status, e.Reason})
	}
	return m
}

func set(at *string, to string) {
	if to != "" {
		*at = to
	}
}

// with is another list, in which v stands at i; at the end if i is negative.
func with[T any](list []T, i int, v T) []T {
	list = slices.Clip(list)
	if i < 0 {
		return append(list, v)
	}
	list = slices.Clone(list)
	list[i] = v
	return list
}

// moneyBacks is an ordered, persistent collection, as [bills] is.
type moneyBacks []*MoneyBack

func (ms moneyBacks) find(p Period) (int, bool) {
	i := sort.Search(len(ms), func(i int) bool { return !ms[i].Period.Before(p) })
	return i, i < len(ms) && ms[i].Period == p
}

// after is the collection after e.
func (ms moneyBacks) after(e Event) moneyBacks {
	_, p, ok := BillOf(e)
	if !ok || !(MoneyBack{}).about(e) {
		return ms
	}
	i, ok := ms.find(p)
	m := MoneyBack{Period: p}
	if ok {
		m = *ms[i]
	}
	m = m.Evolve(e)
	if !ok {
		return slices.Insert(slices.Clone(ms), i, &m)
	}
	next := slices.Clone(ms)
	next[i] = &m
	return next
}

// MoneyBack is what went back, or may have to, of the bill for p.
func (c Customer) MoneyBack(p Period) MoneyBack {
	if i, ok := c.back.find(p); ok {
		return *c.back[i]
	}
	return MoneyBack{Period: p}
}

// MoneyBacks lists, oldest period first, the bills that took money or of whose
// money something is known.
func (c Customer) MoneyBacks() iter.Seq[MoneyBack] {
	return func(yield func(MoneyBack) bool) {
		for _, m := range c.back {
			if !yield(*m) {
				return
			}
		}
	}
}
