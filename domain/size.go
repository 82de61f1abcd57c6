package domain

import "reflect"

// Sizes of the parts of a customer, without what they point to.
var (
	customerSize  = sizeOf[Customer]()
	periodSize    = sizeOf[Period]()
	billSize      = sizeOf[Bill]() + pointerSize
	moneyBackSize = sizeOf[MoneyBack]() + pointerSize
	refundSize    = sizeOf[Refund]()
	proposalSize  = sizeOf[RefundProposal]()
	disputeSize   = sizeOf[Dispute]()
	changesSize   = sizeOf[AmountChange]()
	schedulesSize = sizeOf[ScheduleChange]()
	pauseSize     = sizeOf[Pause]()
)

const pointerSize = 8

func sizeOf[T any]() int { return int(reflect.TypeFor[T]().Size()) }

// textSize is what a short text takes beside its header, as it is allocated:
// in steps of 16 bytes.
func textSize[S ~string](texts ...S) (bytes int) {
	for _, t := range texts {
		bytes += (len(t) + 15) &^ 15
	}
	return bytes
}

// Size is about how many bytes of memory c takes, with all that it points to.
// It is meant for whoever keeps many customers and has to bound them.
func (c Customer) Size() int {
	s := c.subscription
	n := customerSize + textSize(string(c.id), c.stripeCustomer, c.paymentMethod, s.TimeZone) +
		len(s.Changes)*changesSize + len(s.Schedules)*schedulesSize + len(s.Pauses)*pauseSize +
		(len(c.requested.sorted)+len(c.billedPeriods.sorted)+len(c.closedPeriods.sorted))*periodSize
	for _, b := range c.bills {
		n += billSize + textSize(string(b.Key), b.StripeCustomerID, b.PaymentMethodID, b.IntentID, b.ChargeID, string(b.Amount.Currency), string(b.DeclineClass), b.Reference, b.Reason, b.Dunning.Reason)
	}
	for _, m := range c.back {
		n += moneyBackSize + textSize(m.ChargeID, string(m.Taken.Currency)) + len(m.Proposals)*proposalSize + len(m.Disputes)*disputeSize
		for _, r := range m.Refunds {
			n += refundSize + textSize(r.RefundID, r.StripeRefundID, r.ChargeID, r.Reason)
		}
		for _, p := range m.Proposals {
			n += textSize(p.ChargeID, p.Reason, p.Dismissed)
		}
		for _, d := range m.Disputes {
			n += textSize(d.DisputeID, d.ChargeID, d.Status, d.Reason)
		}
	}
	return n
}
