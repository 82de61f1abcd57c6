package selftest

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// rows reads where the bills stand. One that the look found paid before it was
// asked for has a fact and no row.
func (r *run) rows(ctx context.Context) (rows []row, err error) {
	err = r.onDatabase(ctx, func(conn *pgx.Conn) error {
		found, err := conn.Query(ctx, `SELECT customer_id, state, attempt, coalesce(outcome->>'reason', '') FROM billing_records WHERE billing_period = $1
			UNION ALL
			SELECT payload->>'customer_id', 'succeeded', 0, 'recovered' FROM events e
			WHERE event_type = 'customer.billed.v1' AND payload->>'billing_period' = $1
				AND NOT EXISTS (SELECT FROM billing_records r WHERE r.customer_id = e.payload->>'customer_id' AND r.billing_period = $1)
			ORDER BY 1`, period)
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(found, pgx.RowToStructByPos[row])
		return err
	})
	return rows, err
}

func (r *run) query(ctx context.Context, sql string, into any) error {
	return r.onDatabase(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, sql).Scan(into) })
}

func (r *run) exec(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = r.onDatabase(ctx, func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, sql, args...)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// onDatabase does something on the run's database, which is connected to once.
func (r *run) onDatabase(ctx context.Context, do func(*pgx.Conn) error) error {
	if r.conn == nil {
		conn, err := pgx.Connect(ctx, r.h.server.DSN(r.database))
		if err != nil {
			return err
		}
		r.conn = conn
	}
	return do(r.conn)
}

func (r *run) disconnect() {
	if r.conn != nil {
		r.conn.Close(context.Background())
		r.conn = nil
	}
}
