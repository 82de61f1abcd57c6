package verify

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
)

// closings makes the report of every closing again, from the log alone.
func (c *checking) closings(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT partition || '-' || position, payload FROM events WHERE event_type = $1 ORDER BY position`, domain.RunClosed{}.EventName())
	if err != nil {
		return fmt.Errorf("read closings: %w", err)
	}
	type closing struct {
		place   string
		payload []byte
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v closing, err error) {
		err = row.Scan(&v.place, &v.payload)
		return v, err
	})
	if err != nil {
		return fmt.Errorf("read closings: %w", err)
	}
	for _, v := range all {
		var closed domain.RunClosed
		if err := json.Unmarshal(v.payload, &closed); err != nil {
			continue // the log's own check tells of it
		}
		about := "closing of run " + closed.BillingPeriod.String() + " at " + v.place
		report, err := projections.ReportRun(ctx, tx, c.store, closed.BillingPeriod, closed.AsOf, nil)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			c.found(Difference{KindClosing, about, "its report cannot be made again: " + err.Error(), closingRemedy})
		case report.Digest() != closed.ReportSHA256:
			c.found(Difference{KindClosing, about, fmt.Sprintf("its report's digest was %s, and the log now gives %s: %s", closed.ReportSHA256, report.Digest(), changed(closed, report)), closingRemedy})
		}
	}
	return nil
}

const closingRemedy = "the log before the closing is not what it was: compare it with an export of that time, and restore what differs"

// changed says what of a report differs.
func changed(closed domain.RunClosed, report domain.RunReport) string {
	if closed.BillsSHA256 != report.BillsSHA256 {
		return "its bills are others"
	}
	return "its bills are the same, its facts are not"
}
