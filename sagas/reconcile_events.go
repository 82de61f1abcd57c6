package sagas

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// catchUp reads Stripe's list of events from where it was last read, less an
// hour, and puts into the inbox what nothing has told so far.
func (p *pass) catchUp(ctx context.Context) error {
	if p.news == nil {
		return p.inbox.drain(ctx)
	}
	var through *time.Time
	err := p.pool.QueryRow(ctx, `SELECT through FROM news_catch_up`).Scan(&through)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("read how far events were read: %w", err)
	}
	listing := EventListing{PageSize: passPage}
	if through != nil {
		listing.Since = through.Add(-lookOverlap)
	}
	var newest News
	group, reading := errgroup.WithContext(ctx)
	pages := make(chan []News, 2) // one is read while the one before is compared
	group.Go(func() error {
		defer close(pages)
		for {
			page, err := read(reading, p, func(ctx context.Context) (EventPage, error) { return p.news.Events(ctx, listing) })
			if err != nil {
				return fmt.Errorf("read Stripe's events: %w", err)
			}
			select {
			case pages <- page.News:
			case <-reading.Done():
				return reading.Err()
			}
			if !page.More || len(page.News) == 0 {
				return nil
			}
			listing.After = page.News[len(page.News)-1].EventID
		}
	})
	group.Go(func() error {
		for page := range pages {
			if newest.EventID == "" && len(page) > 0 {
				newest = page[0]
			}
			p.events += int64(len(page))
			if err := p.untold(reading, page); err != nil {
				return err
			}
			if err := p.note(reading); err != nil {
				return err
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := p.inbox.drain(ctx); err != nil || newest.EventID == "" {
		return err
	}
	_, err = p.pool.Exec(ctx, `INSERT INTO news_catch_up (through, event_id) VALUES ($1, $2)
		ON CONFLICT (only_row) DO UPDATE SET through = excluded.through, event_id = excluded.event_id, updated_at = clock_timestamp()
		WHERE news_catch_up.through <= excluded.through`, newest.Created, newest.EventID)
	if err != nil {
		return fmt.Errorf("keep how far events were read: %w", err)
	}
	return nil
}

// untold stores events that say something which the log does not have. A
// failure says nothing that a read of its intent would not say.
func (p *pass) untold(ctx context.Context, page []News) error {
	var ids []domain.CustomerID
	for _, n := range page {
		if n.Charge != nil && n.Charge.Succeeded {
			if b, ok := billOf(*n.Charge); ok {
				ids = append(ids, b.customer)
			}
		}
	}
	customers, _, err := p.d.Customers(ctx, p.pool, ids)
	if err != nil {
		return err
	}
	var fresh []News
	for _, n := range page {
		switch {
		case !n.known(), n.Charge != nil && !n.Charge.Succeeded:
			continue
		case n.Charge != nil:
			b, marked := billOf(*n.Charge)
			state, _ := customers[b.customer].Bill(b.period)
			if !marked || p.success(b, *n.Charge).knownTo(state) {
				continue // a charge that nobody knows is a finding of the sweep
			}
		}
		fresh = append(fresh, n)
	}
	if len(fresh) == 0 {
		return nil
	}
	_, err = p.inbox.store(ctx, domain.SourceEvents, nil, fresh...)
	return err
}

// drain applies what is due until nothing is.
func (in *Inbox) drain(ctx context.Context) error {
	for {
		n, err := in.batch(ctx, "")
		switch {
		case err != nil && eventstore.Transient(err):
			return err
		case err != nil:
			return in.oneByOne(ctx)
		case n == 0:
			return nil
		}
	}
}
