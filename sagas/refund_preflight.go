package sagas

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// RefundPreflight writes the pre-flight row of every RefundRequested, and moves
// rows whose refund was heard of by another road. Wake is called when there may
// be rows to claim.
//
// It may read the log again from the beginning at any time: a row is inserted
// or exists, and a state only ever goes on.
func RefundPreflight(wake func()) tracking.Processor {
	return tracking.Processor{
		Name: "refund-preflight", Kind: tracking.Effectful, Start: tracking.Beginning,
		Events:   []string{domain.RefundRequested{}.EventName(), domain.RefundRecorded{}.EventName()},
		PageSize: preflightPage, Partitions: eventstore.Partitions, Pace: sagaPace,
		Handler: tracking.HandlerFunc(refundPreflight),
		AfterCommit: func(*tracking.Page) {
			crashpoint.Reach("refund.reserved")
			wake()
		},
	}
}

func refundPreflight(ctx context.Context, p *tracking.Page) error {
	writes := &pgx.Batch{}
	for _, r := range p.Events { // few: refunds are rare beside charges
		switch e := r.Event.(type) {
		case domain.RefundRequested:
			writes.Queue(`INSERT INTO refund_records (customer_id, refund_id, billing_period, partition, charge_id, key, amount, currency, state)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'requested') ON CONFLICT (customer_id, refund_id) DO NOTHING`,
				string(e.CustomerID), e.RefundID, e.BillingPeriod.String(), r.Partition, e.ChargeID, string(e.Key), e.Minor, string(e.Currency))
		case domain.RefundRecorded:
			before := statesBefore(e.State)
			if e.RefundID == "" || len(before) == 0 {
				continue
			}
			if e.Source == domain.SourceOperator { // it stands as Stripe has it, and is read by that from here on
				writes.Queue(`UPDATE refund_records SET charge_id = $3, amount = $4, currency = $5 WHERE customer_id = $1 AND refund_id = $2 AND state = 'needs_review'`,
					string(e.CustomerID), e.RefundID, e.ChargeID, e.Money.Minor, string(e.Money.Currency))
				before = append(before, string(domain.RefundStateReview))
			}
			// The fence rises, so that a worker that holds the row learns of it.
			writes.Queue(`UPDATE refund_records SET state = $3, stripe_refund_id = coalesce(stripe_refund_id, nullif($4, '')), fence = fence + 1,
					lease_until = NULL, next_try_at = NULL, tries = 0, updated_at = clock_timestamp()
				WHERE customer_id = $1 AND refund_id = $2 AND state = ANY($5) AND (stripe_refund_id IS NULL OR stripe_refund_id = $4)`,
				string(e.CustomerID), e.RefundID, string(e.State), e.StripeRefundID, before)
		}
	}
	if writes.Len() == 0 {
		return nil
	}
	if err := p.Tx.SendBatch(ctx, writes).Close(); err != nil {
		return fmt.Errorf("refund-preflight: %w", err)
	}
	crashpoint.Reach("refund.reserving")
	return nil
}

// statesBefore lists the row's states that news of s moves on from. What is
// known of a send alone is the worker's own to write.
func statesBefore(s domain.RefundState) []string {
	before := []string{string(domain.RefundStateRequested), refundSending, string(domain.RefundStateUnknown), string(domain.RefundStateRefused)}
	switch s {
	case domain.RefundStatePending:
		return before
	case domain.RefundStateSucceeded:
		return append(before, string(domain.RefundStatePending))
	case domain.RefundStateReview:
		return append(before, string(domain.RefundStatePending))
	case domain.RefundStateFailed, domain.RefundStateCancelled:
		return append(before, string(domain.RefundStatePending), string(domain.RefundStateSucceeded), string(domain.RefundStateReview))
	}
	return nil
}
