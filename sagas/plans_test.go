package sagas

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// A plan that was made while the tables were empty still finds its rows by their
// keys when they have grown: what a page reads does not depend on what else is
// there.
func TestPlansOfAnEmptyDatabaseHold(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	config, err := pgxpool.ParseConfig(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range eventstore.KeyedPlans() {
		config.ConnConfig.RuntimeParams[name] = value
	}
	config.MaxConns = 1 // one session keeps its plans
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()

	period, err := domain.ParsePeriod("2026-11")
	if err != nil {
		t.Fatal(err)
	}
	const page = 8
	bills := make([]bill, page)
	ids, customers, versions, codes := make([]string, page), make([]string, page), make([]int64, page), make([]string, page)
	for i := range page {
		customers[i] = fmt.Sprintf("c%d", 100*(i+1))
		bills[i] = bill{domain.CustomerID(customers[i]), period}
		ids[i], versions[i] = customers[i]+"/2026-11", 1
	}
	locked := func(where string, skip bool) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			batch := &pgx.Batch{}
			queueRecords(batch, bills, where, skip)
			return tx.SendBatch(ctx, batch).Close()
		}
	}
	statements := map[string]func(context.Context, pgx.Tx) error{
		"load instances of a saga": func(ctx context.Context, tx pgx.Tx) error {
			byID := map[string]*instance[BillingState]{}
			for _, id := range ids {
				byID[id] = &instance[BillingState]{id: id}
			}
			return Billing.load(ctx, tx, ids, byID)
		},
		"lock rows to claim them": locked(claimed, true),
		"lock rows":               locked("true", false),
		"write rows": func(ctx context.Context, tx pgx.Tx) error {
			batch := &pgx.Batch{}
			queueRecords(batch, bills, "true", false)
			answers := tx.SendBatch(ctx, batch)
			rows, err := answers.Query()
			if err != nil {
				return err
			}
			records, err := scanRecords(rows)
			if err != nil {
				return err
			}
			if err := answers.Close(); err != nil || len(records) == 0 {
				return err
			}
			return saveRecords(ctx, tx, records)
		},
		"keep what is registered": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, registeredSQL, "2026-11", customers, versions, codes)
			return err
		},
		"pass over what has ended": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, passOverSQL, "2026-11")
			return err
		},
	}
	// read runs a statement and says how many rows it looked at.
	read := func(t *testing.T, statement func(context.Context, pgx.Tx) error) (rows int) {
		t.Helper()
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			const seen = `SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int FROM pg_stat_xact_user_tables`
			var before int
			if err := tx.QueryRow(ctx, seen).Scan(&before); err != nil {
				return err
			}
			if err := statement(ctx, tx); err != nil {
				return err
			}
			err := tx.QueryRow(ctx, seen).Scan(&rows)
			rows -= before
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	for name, statement := range statements {
		if n := read(t, statement); n != 0 {
			t.Fatalf("%s: %d rows were read of empty tables", name, n)
		}
	}
	for _, sql := range []string{
		`INSERT INTO billing_records (customer_id, billing_period, partition, attempt, key, amount, currency, stripe_customer_id, payment_method, params, state, last_position)
			SELECT 'c' || n, '2026-11', 0, 1, 'k', 5000, 'usd', 'cus_1', 'pm_1', '{}', 'reserved', n FROM generate_series(1, 2000) n`,
		`INSERT INTO sagas (saga, id, state, step, version, last_position) SELECT 'billing', 'c' || n || '/2026-11', '{}', 'asked', 1, n FROM generate_series(1, 2000) n`,
		`INSERT INTO run_manifest (billing_period, customer_id, amount_minor, currency, stripe_customer_id, fixed, version, registered, pending)
			SELECT billing_period, customer_id, amount, currency, stripe_customer_id, true, 1, false, last_position <= 8 FROM billing_records`,
	} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	for name, statement := range statements {
		t.Run(name, func(t *testing.T) {
			if n := read(t, statement); n == 0 || n > 6*page {
				t.Errorf("for %d of 2000 bills %d rows were read", page, n)
			}
		})
	}
}
