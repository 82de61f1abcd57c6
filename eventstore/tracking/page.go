package tracking

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// slice is what a page has of one partition.
type slice struct {
	claim  claim
	until  int64 // read no further
	most   int   // events
	newest int64
	events []eventstore.Recorded
	// handled counts those of them that the handler is given.
	handled int
	last    int64                 // position of the last event read
	stop    *stopped              // what the token does not go past
	passed  []eventstore.Recorded // not known to this build, and passed over
}

// reached is where the token may go once the events have been handled. Where
// the page was not full, that is the newest position that was there to read.
func (s *slice) reached() int64 {
	switch {
	case s.stop != nil && len(s.events) == 0:
		return s.claim.Position
	case s.stop != nil, len(s.events) == s.most:
		return s.last
	}
	return max(s.claim.Position, s.last, min(s.newest, s.until))
}

// end is where the partition ends for now: nothing further is to be done there.
func (s *slice) end() int64 {
	end := max(s.newest, s.last)
	if s.claim.StopAt != nil {
		return min(end, *s.claim.StopAt)
	}
	return end
}

// share splits the page between the claimed partitions. A partition in which a
// page has failed is alone and sends one event; the others come back at once.
func (w *worker) share(claims []claim) []*slice {
	if i := slices.IndexFunc(claims, claim.suspect); i >= 0 {
		for _, c := range claims {
			if c.Partition != claims[i].Partition {
				w.unit.more |= 1 << c.Partition
			}
		}
		return []*slice{newSlice(claims[i], 1)}
	}
	page := make([]*slice, len(claims))
	for i, c := range claims {
		page[i] = newSlice(c, max(1, w.processor.PageSize/len(claims)))
	}
	return page
}

func newSlice(c claim, most int) *slice {
	s := &slice{claim: c, until: c.Position + window, most: most}
	if c.StopAt != nil {
		s.until = min(s.until, *c.StopAt)
	}
	return s
}

// readClaimed reads the page of a unit's claims.
func (w *worker) readClaimed(ctx context.Context, u *unit) (page []*slice, waiting map[string]bool, err error) {
	if w.processor.Ordered {
		return w.readOrdered(ctx, u.tx, u.claims)
	}
	page = w.share(u.claims)
	waiting, err = w.read(ctx, u.tx, page)
	return page, waiting, err
}

// read fills the slices in one round trip, and tells which sequences have
// letters waiting.
func (w *worker) read(ctx context.Context, tx pgx.Tx, page []*slice) (waiting map[string]bool, err error) {
	n := len(page)
	partitions, after, until, most := make([]int16, n), make([]int64, n), make([]int64, n), make([]int32, n)
	var at [eventstore.Partitions]*slice
	for i, s := range page {
		partitions[i], after[i], until[i], most[i] = s.claim.Partition, s.claim.Position, s.until, int32(s.most)
		at[s.claim.Partition] = s
	}
	batch := &pgx.Batch{}
	batch.Queue(newestSQL, partitions).Query(func(rows pgx.Rows) error {
		var partition int16
		var newest int64
		_, err := pgx.ForEachRow(rows, []any{&partition, &newest}, func() error {
			at[partition].newest = newest
			return nil
		})
		return err
	})
	sql, args := pageSQL, []any{partitions, after, until, most, w.processor.unwanted}
	if w.processor.Ordered {
		sql, args = orderedPageSQL, append(args, page[0].most)
	}
	batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			e, err := scanEvent(rows)
			if err != nil {
				return err
			}
			s := at[e.Partition]
			if e.Position <= max(s.last, s.claim.Position) {
				return fmt.Errorf("the database gave %s after %d", e.Place, max(s.last, s.claim.Position))
			}
			s.last = e.Position
			s.events = append(s.events, e)
		}
		return rows.Err()
	})
	waiting = map[string]bool{}
	batch.Queue(waitingSQL, w.processor.Name, partitions).Query(func(rows pgx.Rows) error {
		var key string
		_, err := pgx.ForEachRow(rows, []any{&key}, func() error {
			waiting[key] = true
			return nil
		})
		return err
	})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("read a page: %w", err)
	}
	return waiting, nil
}

func scanEvent(row pgx.CollectableRow) (r eventstore.Recorded, err error) {
	var stream, key string
	err = row.Scan(&r.Partition, &r.Position, &r.EventID, &stream, &r.Version, &r.Type, &r.SchemaVersion, &r.SequenceKey,
		(*[]byte)(&r.Payload), (*[]byte)(&r.Metadata), &key, &r.Digest, &r.RecordedAt)
	r.Stream, r.CommandKey = domain.StreamID(stream), domain.Key(key)
	return r, err
}

// sift decodes the events of a slice and sorts out what the handler is not to
// see. What this build does not know ends the slice before it. What cannot be
// decoded, and what has failed too often, is parked; what follows it on the
// same sequence goes behind it.
func (w *worker) sift(s *slice, waiting map[string]bool) (events []eventstore.Recorded, letters []Letter) {
	for i, e := range s.events {
		if waiting[e.SequenceKey] {
			letters = append(letters, letterOf(w.processor.Name, e, Behind, 0, "waits behind an earlier event of the same sequence"))
			continue
		}
		if s.claim.wornOut(e.Position, w.processor.MaxAttempts) {
			letters = append(letters, letterOf(w.processor.Name, e, Parked, s.claim.Attempts, s.claim.LastError))
			waiting[e.SequenceKey] = true
			continue
		}
		kept := len(events)
		events = w.runtime.codec.AppendDecoded(events, e)
		e.Err = events[kept].Err
		if e.Err == nil {
			events = w.processor.wanted(events, kept)
			continue
		}
		events = events[:kept]
		if _, unknown := errors.AsType[*eventstore.UnknownEvent](e.Err); unknown {
			if w.processor.Tolerant {
				s.passed = append(s.passed, e)
				continue
			}
			s.stop = &stopped{e.Place, e.Err}
			s.events = s.events[:i]
			if i > 0 {
				s.last = s.events[i-1].Position
			}
			return events, letters
		}
		letters = append(letters, letterOf(w.processor.Name, e, Parked, 1, e.Err.Error()))
		waiting[e.SequenceKey] = true
	}
	return events, letters
}

// handle reads the claimed partitions, gives the handler what it is to see and
// puts the rest into letters.
func (w *worker) handle(ctx context.Context) error {
	u := w.unit
	page, waiting, err := w.readClaimed(ctx, u)
	if err != nil {
		return err
	}
	u.slices = page
	var passed []eventstore.Recorded
	p := &Page{Processor: w.processor.Name, Tx: pageTx{u.tx}}
	for _, s := range page {
		p.replayUntil[s.claim.Partition] = s.claim.ReplayUntil
		events, letters := w.sift(s, waiting)
		s.handled = len(events)
		p.Events = append(p.Events, events...)
		u.letters = append(u.letters, letters...)
		passed = append(passed, s.passed...)
		if s.stop == nil && s.reached() < s.end() {
			u.more |= 1 << s.claim.Partition
		}
	}
	if w.processor.Ordered {
		inOrder(p.Events)
	}
	if u.alone {
		u.marked = w.processor.marks(page)
	}
	if len(u.marked) > 0 && len(p.Events) > 0 {
		deaths, err := w.mark(ctx, u.marked, len(p.Events) == 1)
		if err != nil {
			w.processor.log.Warn("a page is handled unmarked", "error", err)
		}
		if deaths >= deadliest {
			u.letters = append(u.letters, letterOf(p.Processor, p.Events[0], Parked, deaths, fmt.Sprintf("%d processes died while they handled it", deaths)))
			p.Events = nil
		}
	}
	if len(p.Events) > 0 {
		u.page = p
		if err := w.processor.Handler.Handle(ctx, p); err != nil {
			return err
		}
	}
	if err := w.pass(ctx, u.tx, passed); err != nil {
		return err
	}
	return insertLetters(ctx, u.tx, u.letters)
}
