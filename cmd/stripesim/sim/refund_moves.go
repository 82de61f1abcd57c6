package sim

import (
	"errors"
	"fmt"
	"slices"
)

// RefundChange is what control does to refunds: without Refund it makes one of
// Charge, as somebody at the dashboard would, with it that one gets a Status.
type RefundChange struct {
	Refund        string
	Status        string // pending, requires_action, succeeded, failed or canceled; new ones: "" is succeeded
	FailureReason string // of failed; "" is unknown
	Charge        string
	Amount        int64 // minor units; 0: all that is left
	Metadata      map[string]string
}

var refundStatuses = []string{"pending", "requires_action", "succeeded", "failed", "canceled"}

// ChangeRefund makes a refund that no request asked for, or moves one. Money of a
// refund that fails or is cancelled is no longer refunded; neither state is left
// again.
func (s *Sim) ChangeRefund(o RefundChange) (Refund, error) {
	if o.Status != "" && !slices.Contains(refundStatuses, o.Status) {
		return Refund{}, fmt.Errorf("change refund: status %q is none of %v", o.Status, refundStatuses)
	}
	if (o.Refund == "") == (o.Charge == "") {
		return Refund{}, errors.New("change refund: name either a refund or a charge")
	}
	var changed *refund
	err := s.change(func(t *tx) (err error) {
		if o.Refund == "" {
			changed, err = t.plantRefund(o)
		} else {
			changed, err = t.moveRefund(o)
		}
		return err
	})
	if err != nil {
		return Refund{}, err
	}
	return changed.shown(), nil
}

func (t *tx) plantRefund(o RefundChange) (*refund, error) {
	fields := params{}
	for k, v := range o.Metadata {
		fields = append(fields, pair{"metadata[" + k + "]", v})
	}
	if e := fields.checkMetadata(); e != nil {
		return nil, fmt.Errorf("refund %s: %w", o.Charge, e)
	}
	ch, ok := t.s.charges.get(o.Charge)
	switch {
	case !ok:
		return nil, fmt.Errorf("refund %s: %w", o.Charge, ErrNoSuchObject)
	case ch.Status != succeeded, o.Amount < 0 || o.Amount > ch.Amount-ch.Refunded, ch.Amount == ch.Refunded:
		return nil, fmt.Errorf("refund %s: %d of %d cannot be refunded", o.Charge, o.Amount, ch.Amount-ch.Refunded)
	}
	if o.Amount == 0 {
		o.Amount = ch.Amount - ch.Refunded
	}
	ends := o.Status == "failed" || o.Status == "canceled"
	first := o.Status
	if ends {
		first = "pending"
	}
	defaultTo(&first, "succeeded")
	r := t.refund(ch, o.Amount, first, "", fields.metadata(nil))
	if !ends {
		return r, nil
	}
	moved := *r
	t.move(&moved, ch.ID, o)
	return &moved, nil
}

func (t *tx) moveRefund(o RefundChange) (*refund, error) {
	old, ok := t.s.refunds.get(o.Refund)
	switch {
	case !ok:
		return nil, fmt.Errorf("change refund %s: %w", o.Refund, ErrNoSuchObject)
	case o.Status == "":
		return nil, fmt.Errorf("change refund %s: no status", o.Refund)
	case old.state() == "failed", old.state() == "canceled":
		return nil, fmt.Errorf("change refund %s: it stays %s", o.Refund, old.state())
	case old.state() == o.Status:
		return nil, fmt.Errorf("change refund %s: its status is %s already", o.Refund, o.Status)
	}
	moved := *old
	t.move(&moved, old.Charge, o)
	return &moved, nil
}

// move gives a refund, which the caller owns, its new status.
func (t *tx) move(r *refund, chargeID string, o RefundChange) {
	r.Status = o.Status
	failed := r.Status == "failed"
	if failed {
		r.FailureReason = o.FailureReason
		defaultTo(&r.FailureReason, "unknown")
	}
	if failed || r.Status == "canceled" {
		if ch, ok := t.s.charges.get(chargeID); ok {
			back := *ch
			back.Refunded -= r.Amount
			t.putCharge(&back)
		}
	}
	t.putRefund(r)
	t.tell(refundUpdated, r)
	t.tell(chargeRefundEdited, r)
	if failed {
		t.tell(refundFailed, r)
	}
}

// Refund is a refund as control shows it.
type Refund struct {
	ID            string `json:"refund"`
	Charge        string `json:"charge"`
	Amount        int64  `json:"amount"` // minor units
	Currency      string `json:"currency"`
	Status        string `json:"status"`
	FailureReason string `json:"failure_reason,omitempty"`
	Key           string `json:"key,omitempty"` // Idempotency-Key of the request that made it
}

func (r *refund) shown() Refund {
	return Refund{ID: r.ID, Charge: r.Charge, Amount: r.Amount, Currency: r.Currency, Status: r.state(), FailureReason: r.FailureReason, Key: r.Key}
}

// Refunds returns every refund, oldest first.
func (s *Sim) Refunds() []Refund {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []Refund{}
	for r := range s.refunds.oldestFirst {
		found = append(found, r.shown())
	}
	return found
}
