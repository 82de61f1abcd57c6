package sagas

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// Look reads what Stripe already holds, so that nothing is created over it: a
// charge that another road made, an intent that a lost transaction had
// created, everything that a restored database has forgotten.
//
// A start sweeps both lists, charges and payment intents, from what was last
// committed less an hour; the first start from LookSince, default everything.
// While the collector creates, the look goes on by cursor, one read about
// every hundred creates and at least once a minute. Progress is kept in
// Stripe's own time, so that a restore takes it back too.
//
// On a database that has gone back, or that lies elsewhere than it did, a look
// is taken anew before an operator adopts it. It rebuilds facts and changes
// nothing at Stripe: what it would cancel, and how far it has read, it keeps
// until the adoption.
type Look struct {
	c         *Collector
	completed atomic.Int64 // the database's epoch for which it is complete; 0: none
	looked    atomic.Int64 // … for which both lists were swept
	creates   atomic.Int64 // since the last read
	commits   atomic.Int64
	adopted   atomic.Int64
	spent     atomic.Int64 // nanoseconds
	ask       chan struct{}
	trouble   atomic.Pointer[string]

	// Of the look that Run is taking.
	epoch   int64
	orphans []marked // open intents that their bills do not use, to be cancelled
	swept   []sweep
}

// sweep is a list that was read to its end.
type sweep struct {
	resource string
	from, to progress
}

// Limits of the look.
const (
	lookPage    = 100 // Stripe's most
	lookOverlap = time.Hour
	lookCreates = 100
	lookEvery   = time.Minute
)

// lookResources are the lists in the order of a sweep: what has succeeded is
// known before an open intent is adopted.
var lookResources = [...]string{"charges", "payment_intents"}

func newLook(c *Collector) *Look { return &Look{c: c, ask: make(chan struct{}, 1)} }

// Completed reports whether nothing that Stripe holds stands against creating.
func (l *Look) Completed() bool { return l.completed.Load() != 0 }

// Trouble is why the look is not complete: what Stripe answered last; empty if
// nothing was wrong. It names no customer.
func (l *Look) Trouble() string {
	if why := l.trouble.Load(); why != nil && !l.Completed() {
		return *why
	}
	return ""
}

// Adopted counts the objects at Stripe that the log did not know of.
func (l *Look) Adopted() int64 { return l.adopted.Load() }

// Spent is how long the look has been reading and comparing.
func (l *Look) Spent() time.Duration { return time.Duration(l.spent.Load()) }

// timed adds what f takes to Spent.
func (l *Look) timed(f func() error) error {
	began := time.Now()
	defer func() { l.spent.Add(int64(time.Since(began))) }()
	return f()
}

// created counts a create; enough of them ask for the next read.
func (l *Look) created() {
	if l.creates.Add(1) >= lookCreates {
		select {
		case l.ask <- struct{}{}:
		default:
		}
	}
}

// begin forgets the look that was taken for another epoch.
func (l *Look) begin(epoch int64) {
	l.completed.Store(0)
	l.looked.Store(0)
	l.epoch, l.orphans, l.swept = epoch, nil, nil
}

// ahead sweeps both lists to their ends, once, and only reads.
func (l *Look) ahead(ctx context.Context) error {
	if l.looked.Load() == l.epoch {
		return nil
	}
	began := time.Now()
	l.orphans, l.swept = nil, nil
	seen := 0
	err := l.timed(func() error {
		for _, resource := range lookResources {
			n, err := l.sweep(ctx, resource)
			if err != nil {
				return fmt.Errorf("look at %s: %w", resource, err)
			}
			seen += n
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.looked.Store(l.epoch)
	l.c.log.Info("both lists are swept", "objects", seen, "adopted", l.adopted.Load(), "orphans", len(l.orphans), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// complete sweeps both lists if that is still to be done, cancels what no bill
// uses, and reads on to where the lists end by now. An intent that Stripe is
// still processing keeps the look open.
func (l *Look) complete(ctx context.Context) error {
	if err := l.ahead(ctx); err != nil {
		return err
	}
	for len(l.orphans) > 0 {
		if err := l.cancelOrphan(ctx, l.orphans[0]); err != nil {
			return err
		}
		l.orphans = l.orphans[1:]
	}
	for _, s := range l.swept {
		if _, err := l.commit(ctx, s.resource, s.from, s.to); err != nil {
			return err
		}
	}
	l.swept = nil
	for _, resource := range lookResources {
		if err := l.goOn(ctx, resource); err != nil {
			return fmt.Errorf("look at %s: %w", resource, err)
		}
	}
	l.completed.Store(l.epoch)
	l.c.log.Info("look complete", "adopted", l.adopted.Load())
	return nil
}

// follow goes on by cursor while the collector creates.
func (l *Look) follow(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.ask:
		case <-tick.C:
		}
		if !l.Completed() || l.creates.Swap(0) == 0 {
			continue
		}
		for _, resource := range lookResources {
			err := l.timed(func() error { return l.goOn(ctx, resource) })
			if err != nil && ctx.Err() == nil {
				l.creates.Add(1) // so that the next tick tries again
				l.c.log.Warn("the look could not go on; trying again", "resource", resource, "error", err)
			}
		}
	}
}

// progress is how far a list has been read, in Stripe's own time.
type progress struct {
	through *time.Time
	cursor  string
}

func (l *Look) progress(ctx context.Context, resource string) (p progress, err error) {
	err = l.c.pool.QueryRow(ctx, `SELECT swept_through, coalesce(cursor, '') FROM looks WHERE resource = $1`, resource).Scan(&p.through, &p.cursor)
	if errors.Is(err, pgx.ErrNoRows) {
		return progress{}, nil
	}
	return p, err
}

// since is from when on a list is read that was read as far as at.
func (l *Look) since(at progress) time.Time {
	if at.through != nil {
		return at.through.Add(-lookOverlap)
	}
	return l.c.config.LookSince
}

// sweep reads a list from its newest object down to where the last sweep
// stood, less an hour, and takes over what it finds. What is newer than the
// sweep's first page is left to the next read by cursor.
func (l *Look) sweep(ctx context.Context, resource string) (seen int, err error) {
	at, err := l.progress(ctx, resource)
	if err != nil {
		return 0, fmt.Errorf("read its progress: %w", err)
	}
	listing := Listing{Resource: resource, Since: l.since(at), PageSize: lookPage}
	var newest progress
	var open []marked
	for {
		page, err := l.page(ctx, listing)
		if err != nil {
			return seen, err
		}
		news, err := l.news(ctx, page.Found, false)
		if err != nil {
			return seen, err
		}
		// Successes at once. Which open intent of a bill is the oldest is known
		// only at the list's end.
		decided := news[:0]
		for _, m := range news {
			if m.open() {
				open = append(open, m)
			} else {
				decided = append(decided, m)
			}
		}
		if err := l.takeAll(ctx, decided); err != nil {
			return seen, err
		}
		seen += len(page.Found)
		if newest.cursor == "" && len(page.Found) > 0 {
			newest = progress{&page.Found[0].Created, page.Found[0].ID}
		}
		if !page.More || len(page.Found) == 0 {
			break
		}
		listing.After = page.Found[len(page.Found)-1].ID
	}
	for n := len(open); n > 0; n = len(open) { // the oldest first
		last := max(0, n-lookPage)
		if err := l.takeAll(ctx, open[last:]); err != nil {
			return seen, err
		}
		open = open[:last]
	}
	if newest.cursor != "" { // an empty list says nothing about how far it was read
		l.swept = append(l.swept, sweep{resource, at, newest})
	}
	return seen, nil
}

// takeAll takes over a part of what a sweep found, and keeps the orphans.
func (l *Look) takeAll(ctx context.Context, news []marked) error {
	if len(news) == 0 {
		return nil
	}
	orphans, err := l.take(ctx, news)
	l.orphans = append(l.orphans, orphans...)
	return err
}

// goOn reads what is newer than the cursor. Rows under a live claim are left to
// their workers.
func (l *Look) goOn(ctx context.Context, resource string) error {
	for {
		at, err := l.progress(ctx, resource)
		if err != nil {
			return fmt.Errorf("read its progress: %w", err)
		}
		if at.cursor == "" {
			return l.goOnWithoutCursor(ctx, resource, at)
		}
		page, err := l.page(ctx, Listing{Resource: resource, Before: at.cursor, PageSize: lookPage})
		if errors.Is(err, ErrPlaceGone) {
			l.c.log.Error("STRIPE HAS LOST WHAT IT HAD: the newest object that was seen is not there any more; the look goes on by time", "resource", resource, "cursor", at.cursor)
			if _, err := l.commit(ctx, resource, at, progress{through: at.through}); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if len(page.Found) == 0 {
			return nil
		}
		if err := l.takeOngoing(ctx, page.Found); err != nil {
			return err
		}
		ours, err := l.commit(ctx, resource, at, progress{&page.Found[0].Created, page.Found[0].ID})
		if err != nil {
			return err
		}
		if ours && !page.More {
			return nil
		}
	}
}

// goOnWithoutCursor reads a list that was empty when it was swept, or has lost
// what the cursor stood at.
func (l *Look) goOnWithoutCursor(ctx context.Context, resource string, at progress) error {
	listing := Listing{Resource: resource, Since: l.since(at), PageSize: lookPage}
	var newest progress
	for {
		page, err := l.page(ctx, listing)
		if err != nil {
			return err
		}
		if err := l.takeOngoing(ctx, page.Found); err != nil {
			return err
		}
		if newest.cursor == "" && len(page.Found) > 0 {
			newest = progress{&page.Found[0].Created, page.Found[0].ID}
		}
		if !page.More || len(page.Found) == 0 {
			break
		}
		listing.After = page.Found[len(page.Found)-1].ID
	}
	if newest.cursor == "" {
		return nil
	}
	_, err := l.commit(ctx, resource, at, newest)
	return err
}

func (l *Look) takeOngoing(ctx context.Context, page []Found) error {
	news, err := l.news(ctx, page, true)
	if err != nil || len(news) == 0 {
		return err
	}
	orphans, err := l.take(ctx, news)
	if err != nil {
		return err
	}
	for _, o := range orphans {
		if err := l.cancelOrphan(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func (l *Look) page(ctx context.Context, listing Listing) (Page, error) {
	if err := l.c.config.Allowance.Calls(ctx, 1); err != nil {
		return Page{}, err
	}
	return l.c.gateway.List(ctx, listing)
}

// commit keeps the progress if it is still where it was read: another replica
// may have gone on, and a restored database knows of neither.
func (l *Look) commit(ctx context.Context, resource string, from, to progress) (ours bool, err error) {
	tag, err := l.c.pool.Exec(ctx, `
		INSERT INTO looks (resource, swept_through, cursor) VALUES ($1, $2, $3)
		ON CONFLICT (resource) DO UPDATE SET swept_through = excluded.swept_through, cursor = excluded.cursor, updated_at = clock_timestamp()
		WHERE coalesce(looks.cursor, '') = $4`, resource, to.through, to.cursor, from.cursor)
	if err != nil {
		return false, fmt.Errorf("commit the progress of the look: %w", err)
	}
	l.commits.Add(1)
	return tag.RowsAffected() == 1, nil
}
