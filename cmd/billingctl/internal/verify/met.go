package verify

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"

	"github.com/jackc/pgx/v5"
)

// The tables whose rows are marked as they are met.
const (
	metBilling = iota
	metRefund
	metSaga
	metSchedule
	metTimer
	metImported
	metTables
)

// met remembers which rows the log accounts for: eight bytes a row. Another
// row of the same hash would hide one that should not be there, once in 2^40
// for a million rows.
type met struct {
	mu     *sync.Mutex
	seed   maphash.Seed
	hashes *[metTables]map[uint64]struct{}
}

func newMet() met {
	m := met{&sync.Mutex{}, maphash.MakeSeed(), &[metTables]map[uint64]struct{}{}}
	for i := range m.hashes {
		m.hashes[i] = map[uint64]struct{}{}
	}
	return m
}

func (m met) hash(a, b string) uint64 { return maphash.String(m.seed, a+"\x00"+b) }

func (m met) mark(table int, a, b string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hashes[table][m.hash(a, b)] = struct{}{}
}

// unmet finds rows that the log does not account for.
func (c *checking) unmet(ctx context.Context, tx pgx.Tx) error {
	for table, t := range [metTables]struct{ name, rows, kind, remedy string }{
		metBilling:  {"billing_records", `SELECT customer_id, billing_period FROM billing_records`, KindRow, "nothing is charged by it, since claims are decided on the log; look where it comes from, and at Stripe: billingctl reconcile"},
		metRefund:   {"refund_records", `SELECT customer_id, refund_id FROM refund_records`, KindRow, "look where it comes from before it is carried out"},
		metSaga:     {"sagas", `SELECT id, '' FROM sagas WHERE saga = 'billing'`, KindSaga, "delete the row: no fact leads to it"},
		metSchedule: {"subscription_schedule", `SELECT customer_id, '' FROM subscription_schedule`, KindSchedule, "delete the row: the log knows of no subscription, and a due would be refused"},
		metTimer:    {"scheduled_commands", `SELECT token, key FROM scheduled_commands`, KindTimer, "delete the row, before it is sent: no decline leads to it"},
		metImported: {"imported_charges", `SELECT charge_id, customer_id || ' ' || billing_period FROM imported_charges`, KindImport, "delete the row, and " + readAgain("preflight")},
	} {
		var a, b string
		rows, err := tx.Query(ctx, t.rows)
		if err == nil {
			_, err = pgx.ForEachRow(rows, []any{&a, &b}, func() error {
				if _, known := c.met.hashes[table][c.met.hash(a, b)]; known {
					return nil
				}
				about := t.name + " " + a
				if b != "" {
					about += " " + b
				}
				c.found(Difference{t.kind, about, "the log does not know of it", t.remedy})
				return nil
			})
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", t.name, err)
		}
	}
	return nil
}
