package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
	"github.com/billonce/billonce/cmd/billingctl/internal/verify"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/rebuild"
)

// dispatchEvery is the time between two commands that are dispatched while read
// models are rebuilt.
const dispatchEvery = 20 * time.Millisecond

// replay rebuilds every read model while commands are dispatched, counts what
// Stripe was asked meanwhile, verifies everything, and says what is wrong.
func (d *demo) replay(ctx context.Context) (findings []string, err error) {
	find := func(format string, args ...any) { findings = append(findings, fmt.Sprintf(format, args...)) }
	pool, err := pgxpool.New(ctx, d.dsn)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	before, err := d.stand.Counters(ctx)
	if err != nil {
		return nil, err
	}
	dispatching, stop := context.WithCancel(ctx)
	defer stop()
	type dispatched struct {
		commands int
		err      error
	}
	done := make(chan dispatched, 1)
	go func() {
		n, err := changeMethods(dispatching, d.service, d.Customers)
		done <- dispatched{n, err}
	}()
	begun := time.Now()
	reports, err := rebuildAll(ctx, pool)
	took := time.Since(begun)
	stop()
	sent := <-done
	if err == nil {
		err = sent.err
	}
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	if err := d.settled(ctx); err != nil {
		return nil, err
	}
	after, err := d.stand.Counters(ctx)
	if err != nil {
		return nil, err
	}

	events, rows := int64(0), int64(0)
	for _, r := range reports {
		events += r.Events
		rows += r.Rows().Rows()
		if n := r.Rows().Rows(); n > 0 {
			find("%s, rebuilt, differs from what was live in %s", r.Projection, plural(int(n), "row", "rows"))
		}
	}
	d.say("  replay           %s rebuilt beside the live ones out of %s in %s, while %s dispatched; %s",
		plural(len(reports), "read model is", "read models are"), plural(int(events), "event", "events"), seconds(took),
		plural(sent.commands, "command was", "commands were"), plural(int(rows), "row differs", "rows differ"))
	posts, others := after.Calls("POST")-before.Calls("POST"), after.Calls("")-before.Calls("")
	others -= posts
	switch {
	case posts > 0:
		find("%s came to Stripe during the replay", plural(int(posts), "POST", "POSTs"))
	case others > 0:
		d.say("                   0 calls to Stripe during replay, but for %s of what the look asks at all times", plural(int(others), "GET", "GETs"))
	default:
		d.say("                   0 calls to Stripe during replay")
	}
	report, err := verify.Database(ctx, pool, verify.Options{Found: func(f verify.Difference) { find("%s: %s: %s", f.Kind, f.About, f.Detail) }})
	if err != nil {
		return nil, err
	}
	d.say("\nverify: events=%d streams=%d differences=%d", report.Events, report.Streams, report.Differences)
	return findings, nil
}

// rebuildAll rebuilds the read models one after the other.
func rebuildAll(ctx context.Context, pool *pgxpool.Pool) (reports []rebuild.Report, err error) {
	store := eventstore.New(pool, eventstore.Current(), slog.New(slog.DiscardHandler))
	defer store.Close()
	for _, p := range projections.All() {
		report, err := rebuild.Run(ctx, store, p, rebuild.Options{Actor: "demo", Reason: "the demo rebuilds everything"})
		if err != nil {
			return nil, err
		}
		reports = append(reports, report)
	}
	return reports, nil
}

// changeMethods gives customers another payment method, one after the other from
// the last on, until ctx ends: facts that move a read model and no money.
func changeMethods(ctx context.Context, c *client.Client, customers []Customer) (commands int, err error) {
	for i := len(customers) - 1; i >= 0 && parts.Pause(ctx, dispatchEvery) == nil; i-- {
		body, err := json.Marshal(map[string]string{"customer_id": customers[i].CustomerID, "payment_method_id": "pm_card_mastercard"})
		if err != nil {
			return commands, err
		}
		_, _, err = c.Command(context.WithoutCancel(ctx), "change-payment-method", "demo-"+customers[i].CustomerID, "", body)
		if err != nil {
			return commands, err
		}
		commands++
	}
	return commands, nil
}
