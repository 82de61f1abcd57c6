package tracking_test

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// A read model of how many bills each customer has paid. The count and the
// place up to which it counts are in one transaction, so nothing is counted
// twice, whatever dies in between.
func Example() {
	paid := tracking.Processor{
		Name:     "paid_bills",
		Events:   []string{domain.CustomerBilled{}.EventName()},
		PageSize: 500,
		Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
			counts := &pgx.Batch{}
			for _, e := range p.Events {
				counts.Queue(`INSERT INTO paid_bills VALUES ($1, 1)
					ON CONFLICT (customer_id) DO UPDATE SET paid = paid_bills.paid + 1`, e.Event.(domain.CustomerBilled).CustomerID)
			}
			return p.Tx.SendBatch(ctx, counts).Close()
		}),
		Reset: func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `DELETE FROM paid_bills`)
			return err
		},
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, "postgres://localhost/billing")
	if err != nil {
		panic(err)
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), log)
	defer store.Close()

	runtime := tracking.New(pool, store, tracking.Options{Log: log, Poll: time.Second})
	if err := runtime.Run(ctx, paid); err != nil { // until SIGTERM, then until the pages under way are done
		log.Error("delivery ended", "error", err)
	}
}
