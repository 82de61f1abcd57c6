package domain

// A reader that keeps one part of a customer, such as a read model's row,
// evolves it by the customer's own rules, written once in Customer.Evolve.

// BlankBill is a bill of which nothing is known yet.
func BlankBill(p Period) Bill { return Bill{Period: p, IntentNo: 1} }

// Evolve is the bill after e, a fact about its customer. A fact about another
// bill leaves it as it is.
func (b Bill) Evolve(e Event) Bill {
	c := Customer{bills: bills{&b}}
	if b.Status == BillPaid {
		c.billedPeriods = c.billedPeriods.With(b.Period)
	}
	next, _ := c.Evolve(e).bills.get(b.Period)
	return next
}

// Evolve is the subscription after e, a fact about its customer. The zero
// Subscription is none.
func (s Subscription) Evolve(e Event) Subscription {
	return s.evolve(e)
}

// BillOf is the bill that e is about; ok is false if e is about the customer
// as a whole.
func BillOf(e Event) (c CustomerID, p Period, ok bool) {
	switch e := e.(type) {
	case MonthlyBillingDue:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeRequested:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeAttemptStarted:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeIntentCommitted:
		c, p = e.CustomerID, e.BillingPeriod
	case CustomerBilled:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeDeclined:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeActionRequired:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeRejected:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeHeld:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeNotSent:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeUnknown:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeNeedsReview:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeOutcomeSurprise:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeWaiting:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeReleased:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeVoided:
		c, p = e.CustomerID, e.BillingPeriod
	case BillClosing:
		c, p = e.CustomerID, e.BillingPeriod
	case BillSettled:
		c, p = e.CustomerID, e.BillingPeriod
	case BillWrittenOff:
		c, p = e.CustomerID, e.BillingPeriod
	case DunningScheduled:
		c, p = e.CustomerID, e.BillingPeriod
	case DunningWaiting:
		c, p = e.CustomerID, e.BillingPeriod
	case BillUncollectible:
		c, p = e.CustomerID, e.BillingPeriod
	case SubscriptionDelinquent:
		c, p = e.CustomerID, e.BillingPeriod
	case RefundRequested:
		c, p = e.CustomerID, e.BillingPeriod
	case RefundRecorded:
		c, p = e.CustomerID, e.BillingPeriod
	case RefundProposed:
		c, p = e.CustomerID, e.BillingPeriod
	case RefundProposalDismissed:
		c, p = e.CustomerID, e.BillingPeriod
	case ChargeDisputed:
		c, p = e.CustomerID, e.BillingPeriod
	}
	return c, p, !p.IsZero()
}
