package sagas

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// endings are bills by how they leave the collector's hands.
type endings struct{ paid, void, closing []ending }

// overtaken reads how bills have ended whose requests were dead letters. The
// facts that say so wait behind the requests, and are handled later. Without
// them a row would be free to be collected for a moment, of a bill that is paid.
func overtaken(ctx context.Context, p *tracking.Page, requests []eventstore.Recorded) (all endings, err error) {
	for _, r := range requests { // one: a redelivery has one event
		e := r.Event.(domain.ChargeRequested)
		rows, err := p.Tx.Query(ctx, `SELECT event_type, position FROM events
			WHERE stream_id = $1 AND stream_version > $2 AND payload->>'billing_period' = $3 ORDER BY stream_version`,
			string(r.Stream), r.Version, e.BillingPeriod.String())
		if err != nil {
			return all, fmt.Errorf("preflight: read what followed %s: %w", r.Place, err)
		}
		var name string
		var position int64
		if _, err := pgx.ForEachRow(rows, []any{&name, &position}, func() error {
			end := ending{e.CustomerID, e.BillingPeriod, position}
			switch name {
			case domain.CustomerBilled{}.EventName():
				all.paid = append(all.paid, end)
				p.Note(settledAs(domain.BillPaid))
			case domain.BillSettled{}.EventName():
				all.void = append(all.void, end)
				p.Note(settledAs(domain.BillSettledStatus))
			case domain.BillWrittenOff{}.EventName():
				all.void = append(all.void, end)
				p.Note(settledAs(domain.BillWrittenOffStatus))
			case domain.ChargeVoided{}.EventName():
				all.void = append(all.void, end)
				p.Note(settledAs(domain.BillVoid))
			case domain.BillClosing{}.EventName():
				all.closing = append(all.closing, end)
			}
			return nil
		}); err != nil {
			return all, fmt.Errorf("preflight: read what followed %s: %w", r.Place, err)
		}
	}
	return all, nil
}
