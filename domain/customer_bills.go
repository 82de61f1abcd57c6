package domain

// evolveBill is Evolve for the facts about one bill.
func (c Customer) evolveBill(e Event) Customer {
	switch e := e.(type) {
	case ChargeRequested:
		c.requested = c.requested.With(e.BillingPeriod)
		return c.bill(e.BillingPeriod, func(b *Bill) {
			b.Reviewed = false
			if b.Dunning != (Dunning{}) {
				b.Dunning = b.Dunning.requested(e.PaymentMethodID == b.PaymentMethodID)
			}
			b.Attempt, b.Start = e.Attempt, 0 // Unresolved stays: an intent may have been adopted before
			b.Key, b.Amount = e.Key, e.Money
			b.StripeCustomerID, b.PaymentMethodID = e.StripeCustomerID, e.PaymentMethodID
			b.progress(BillRequested)
		})
	case ChargeAttemptStarted:
		return c.bill(e.BillingPeriod, func(b *Bill) {
			// A start that ended without an answer may have sent its confirm, but
			// only if there was a committed intent to confirm.
			b.Unresolved = b.Unresolved || b.Status == BillStarted && b.IntentID != ""
			b.Start = e.Start
			b.progress(BillStarted)
		})
	case ChargeIntentCommitted:
		return c.bill(e.BillingPeriod, func(b *Bill) {
			b.IntentID, b.IntentNo = e.IntentID, e.IntentNo
			if !b.Status.Known() {
				b.Status = BillFound
			}
			b.Unresolved = b.Unresolved || e.Adopted // somebody may have confirmed it
		})
	case CustomerBilled:
		c.billedPeriods = c.billedPeriods.With(e.BillingPeriod)
		c.closedPeriods = c.closedPeriods.Without(e.BillingPeriod)
		return c.bill(e.BillingPeriod, func(b *Bill) {
			b.Status, b.ChargeID, b.Unresolved, b.Dunning = BillPaid, e.ChargeID, false, Dunning{}
			if b.Amount.Minor == 0 {
				b.Amount = e.Money
			}
			if e.IntentID != "" {
				b.IntentID = e.IntentID
			}
		})
	case ChargeDeclined:
		return c.bill(e.BillingPeriod, func(b *Bill) {
			b.DeclineClass, b.Unresolved, b.Reviewed = e.Class, false, false
			b.progress(BillDeclined)
		})
	case ChargeRejected:
		return c.bill(e.BillingPeriod, func(b *Bill) { b.progress(BillRejected) })
	case ChargeHeld:
		return c.bill(e.BillingPeriod, func(b *Bill) { b.progress(BillHeld) })
	case ChargeNotSent:
		return c.bill(e.BillingPeriod, func(b *Bill) {
			if b.Unresolved {
				b.progress(BillUnknown)
			} else {
				b.progress(BillRequested)
			}
		})
	case ChargeUnknown:
		return c.bill(e.BillingPeriod, func(b *Bill) { b.Unresolved = true; b.progress(BillUnknown) })
	case ChargeActionRequired:
		return c.bill(e.BillingPeriod, func(b *Bill) { b.progress(BillActionRequired) })
	case ChargeNeedsReview:
		return c.bill(e.BillingPeriod, func(b *Bill) { b.Reviewed = true; b.progress(BillNeedsReview) })
	case ChargeWaiting:
		return c.bill(e.BillingPeriod, func(b *Bill) {
			b.PerhapsSettled = b.PerhapsSettled || e.Reason == ReasonPerhapsSettled
			switch {
			case e.Attempt > 0:
				b.progress(BillWaiting)
			case !b.Status.Known(): // there is no charge yet that could wait
				b.Status = BillFound
			}
		})
	case ChargeReleased:
		return c.bill(e.BillingPeriod, func(b *Bill) {
			b.Released = b.Released || b.PerhapsSettled
			b.PerhapsSettled = false
			switch {
			case b.Status == BillNeedsReview: // something may have been sent: it is read before anything else
				b.Unresolved = b.Unresolved || b.IntentID != ""
				b.progress(BillRequested)
			case b.Status == BillWaiting:
				b.progress(BillRequested)
			case !b.Status.Known():
				b.Status = BillFound
			}
		})
	case ChargeVoided:
		return c.close(e.BillingPeriod, BillVoid)
	case BillClosing:
		return c.bill(e.BillingPeriod, func(b *Bill) {
			b.Closing, b.Reference, b.Reason, b.Dunning = e.Mode, e.Reference, e.Reason, Dunning{}
			b.progress(BillClosingStatus)
		})
	case BillSettled:
		return c.close(e.BillingPeriod, BillSettledStatus)
	case BillWrittenOff:
		return c.close(e.BillingPeriod, BillWrittenOffStatus)
	case DunningScheduled:
		return c.bill(e.BillingPeriod, func(b *Bill) {
			b.Dunning = Dunning{From: e.From, Again: b.Dunning.Again, Attempt: e.Attempt, At: e.At, Reason: e.Reason}
		})
	case DunningWaiting:
		return c.bill(e.BillingPeriod, func(b *Bill) {
			b.Dunning = Dunning{From: e.From, Again: b.Dunning.Again, Awaits: e.Awaits, Reason: e.Reason}
		})
	case BillUncollectible:
		return c.bill(e.BillingPeriod, func(b *Bill) {
			b.Dunning = Dunning{From: e.From, Again: b.Dunning.Again, Reason: e.Reason}
			b.progress(BillUncollectibleStatus)
		})
	case SubscriptionDelinquent: // for others to act on
	case RefundRequested, RefundRecorded, RefundProposed, RefundProposalDismissed, ChargeDisputed: // beside the bill: see MoneyBack
		_, p, _ := BillOf(e)
		return c.bill(p, func(b *Bill) {
			if !b.Status.Known() {
				b.Status = BillFound
			}
		})
	case ChargeOutcomeSurprise: // there to be reconciled; no decision asks about it
	}
	return c
}

func (c Customer) close(p Period, status BillStatus) Customer {
	if c.billedPeriods.Has(p) {
		return c
	}
	c.closedPeriods = c.closedPeriods.With(p)
	return c.bill(p, func(b *Bill) {
		b.Dunning = Dunning{}
		b.progress(status)
	})
}

// progress moves the bill's status, unless the bill has ended.
func (b *Bill) progress(to BillStatus) {
	if !b.Status.Ended() {
		b.Status = to
	}
}
