package tracking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/eventstore"
)

// LetterStatus is where a dead letter stands.
type LetterStatus string

// The states of a letter. The first two are waiting.
const (
	Parked  LetterStatus = "parked"  // it failed
	Behind  LetterStatus = "behind"  // it waits behind one that failed
	Retried LetterStatus = "retried" // it was handled after all
	Skipped LetterStatus = "skipped" // an operator decided against it
)

// Letter is an event that a processor has put aside: it could not be handled,
// or came after one of its sequence that could not.
type Letter struct {
	Processor   string           `json:"processor"`
	Place       eventstore.Place `json:"place"`
	SequenceKey string           `json:"sequence_key"`
	EventID     uuid.UUID        `json:"event_id"`
	EventType   string           `json:"event_type"`
	Attempts    int              `json:"attempts"`
	Error       string           `json:"error"`
	Status      LetterStatus     `json:"status"`
	Reason      string           `json:"reason,omitempty"` // of an operator
	Note        string           `json:"note,omitempty"`   // of one that was retried: why it came to nothing, such as "already billed"
	EnqueuedAt  time.Time        `json:"enqueued_at"`
	ResolvedAt  *time.Time       `json:"resolved_at,omitempty"`
}

func letterOf(processor string, e eventstore.Recorded, status LetterStatus, attempts int, cause string) Letter {
	return Letter{
		Processor: processor, Place: e.Place, SequenceKey: e.SequenceKey, EventID: e.EventID, EventType: e.Type,
		Attempts: attempts, Error: cause, Status: status,
	}
}

// insertLetters writes letters. One that was resolved before, and whose event
// a replay has met again, is opened again.
func insertLetters(ctx context.Context, tx pgx.Tx, letters []Letter) error {
	if len(letters) == 0 {
		return nil
	}
	batch := &pgx.Batch{}
	for _, l := range letters {
		batch.Queue(`INSERT INTO dead_letters (processor, position, partition, sequence_key, event_id, event_type, attempts, error, status)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
			ON CONFLICT (processor, position) DO UPDATE SET attempts = excluded.attempts, error = excluded.error, status = excluded.status,
				reason = NULL, note = '', resolved_at = NULL, enqueued_at = clock_timestamp()
			WHERE dead_letters.status NOT IN ('parked', 'behind')`,
			l.Processor, l.Place.Position, l.Place.Partition, l.SequenceKey, l.EventID, l.EventType, l.Attempts, reason(errors.New(l.Error)), string(l.Status))
		queueHistory(batch, l.Processor, l.Place.Position, HistoryEntry{Outcome: string(l.Status), Detail: l.Error})
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write letters: %w", err)
	}
	return nil
}

// LetterFilter chooses letters. The zero value chooses all that wait.
type LetterFilter struct {
	Processor   string
	SequenceKey string
	EventType   string
	Error       string // a part of the error's text
	Resolved    bool   // those that were retried or skipped, too
	After       int64  // position, for paging; 0: from the start
	Limit       int    // 0: 100
}

const letterColumns = `processor, partition, position, sequence_key, event_id, event_type, attempts, error, status, coalesce(reason, ''), note, enqueued_at, resolved_at`

// letterMatches is the condition of a filter.
const letterMatches = `($1 = '' OR processor = $1) AND ($2 = '' OR sequence_key = $2) AND ($3 = '' OR event_type = $3) AND ($4 = '' OR strpos(error, $4) > 0)`

// Letters reads dead letters in order of position.
func Letters(ctx context.Context, q eventstore.Querier, f LetterFilter) ([]Letter, error) {
	fill(&f.Limit, 100)
	rows, err := q.Query(ctx, `SELECT `+letterColumns+` FROM dead_letters
		WHERE `+letterMatches+` AND ($5 OR status IN ('parked', 'behind')) AND position > $6
		ORDER BY position, processor LIMIT $7`, f.Processor, f.SequenceKey, f.EventType, f.Error, f.Resolved, f.After, f.Limit)
	if err != nil {
		return nil, fmt.Errorf("read letters: %w", err)
	}
	letters, err := pgx.CollectRows(rows, scanLetter)
	if err != nil {
		return nil, fmt.Errorf("read letters: %w", err)
	}
	return letters, nil
}

func scanLetter(row pgx.CollectableRow) (l Letter, err error) {
	err = row.Scan(&l.Processor, &l.Place.Partition, &l.Place.Position, &l.SequenceKey, &l.EventID, &l.EventType, &l.Attempts, &l.Error,
		&l.Status, &l.Reason, &l.Note, &l.EnqueuedAt, &l.ResolvedAt)
	return l, err
}

// Redelivery is what a Retry has come to.
type Redelivery struct {
	Handled int `json:"handled"`
	Void    int `json:"void"`    // of the handled: those of which nothing was left to do
	Waiting int `json:"waiting"` // letters of the sequence still waiting; 0: it is free again
}

// Retry handles the waiting letters of a sequence, in order, each in a
// transaction of its own, until none waits or one fails again: then the error
// says why, and that letter has one more attempt to its name. When none waits
// the sequence is free and its events are handled as they come.
//
// It runs in the caller's process, which must run the processor: the answer to
// whoever asks is what became of the letters, not that somebody will see. A
// letter is handled under its partition's token, so it meets neither a page
// nor a second operator's Retry.
//
// It returns ErrUnknownProcessor, ErrNothingParked, or ErrLetterEnded, which says
// who was quicker.
func (r *Runtime) Retry(ctx context.Context, name, sequenceKey, actor string) (done Redelivery, err error) {
	p, ok := r.processor(name)
	if !ok {
		return done, ErrUnknownProcessor.With("processor %q does not run here", name)
	}
	partition := eventstore.PartitionOf(sequenceKey)
	defer p.ready.wake(1<<partition, true)
	var first, last int64
	for tries := 1; ; {
		at, note, err := r.retryOne(ctx, p, partition, sequenceKey, actor)
		if eventstore.Transient(err) && tries < p.MaxAttempts && pause(ctx, p.Backoff(tries)) {
			tries++
			continue
		}
		tries = 1
		if errors.Is(err, ErrNothingParked) && done.Handled > 0 {
			break
		}
		if errors.Is(err, ErrNothingParked) {
			err = ended(ctx, r.pool, name, sequenceKey, 0)
		}
		if err != nil {
			done.Waiting = r.countWaiting(ctx, name, sequenceKey)
			return done, fmt.Errorf("retry %s for %s: %w", sequenceKey, name, err)
		}
		if done.Handled == 0 {
			first = at
		}
		last = at
		done.Handled++
		if note != "" {
			done.Void++
		}
	}
	p.log.Info("a parked sequence is free again", "sequence_key", sequenceKey, "handled", done.Handled, "actor", actor)
	if err := record(ctx, r.pool, name, actionRetry, actor, &first, &last, sequenceKey); err != nil {
		return done, fmt.Errorf("record the retry of %s for %s: %w", sequenceKey, name, err)
	}
	return done, nil
}

// retryOne handles the first waiting letter of a sequence.
func (r *Runtime) retryOne(ctx context.Context, p *processor, partition int16, sequenceKey, actor string) (position int64, note string, err error) {
	page := &Page{Processor: p.Name, redelivery: true}
	err = pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) (err error) {
		if page.replayUntil[partition], err = lockToken(ctx, tx, p.Name, partition); err != nil {
			return err
		}
		if position, err = firstLetter(ctx, tx, p.Name, sequenceKey); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT `+eventColumns+` FROM events e WHERE partition = $1 AND position = $2`, partition, position)
		if err != nil {
			return err
		}
		page.Events, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (eventstore.Recorded, error) { return scanEvent(row) })
		if err != nil {
			return err
		}
		if len(page.Events) != 1 {
			return fmt.Errorf("the log has no event at %s", eventstore.Place{Partition: partition, Position: position})
		}
		if err := r.handleAgain(ctx, p, page, tx); err != nil {
			return &failedAgain{err}
		}
		batch := &pgx.Batch{}
		batch.Queue(`UPDATE dead_letters SET status = 'retried', note = $3, resolved_at = clock_timestamp() WHERE processor = $1 AND position = $2`, p.Name, position, page.note)
		queueHistory(batch, p.Name, position, HistoryEntry{Outcome: string(Retried), Actor: actor, Detail: page.note})
		return tx.SendBatch(ctx, batch).Close()
	})
	if again, ok := errors.AsType[*failedAgain](err); ok {
		if eventstore.Transient(again.cause) {
			return 0, "", again.cause
		}
		p.metrics.failures.WithLabelValues(p.Name, poison).Inc()
		batch := &pgx.Batch{}
		batch.Queue(`UPDATE dead_letters SET status = 'parked', attempts = attempts + 1, error = $3
			WHERE processor = $1 AND position = $2 AND status IN ('parked', 'behind')`, p.Name, position, reason(again.cause))
		queueHistory(batch, p.Name, position, HistoryEntry{Outcome: "failed", Actor: actor, Detail: reason(again.cause)})
		if err := r.pool.SendBatch(ctx, batch).Close(); err != nil {
			p.log.Warn("an attempt could not be written to its letter", "error", err)
		}
		return 0, "", again.cause
	}
	if err != nil {
		return 0, "", err
	}
	r.announce(p, page)
	p.moved()
	return position, page.note, nil
}

// failedAgain is the failure of a handler, as opposed to one on the way to it.
type failedAgain struct{ cause error }

func (f *failedAgain) Error() string { return f.cause.Error() }

func (r *Runtime) handleAgain(ctx context.Context, p *processor, page *Page, tx pgx.Tx) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	page.Events = r.codec.AppendDecoded(nil, page.Events[0])
	if err := page.Events[0].Err; err != nil {
		return err
	}
	if page.Events = p.wanted(page.Events, 0); len(page.Events) == 0 {
		return nil
	}
	page.Tx = pageTx{tx}
	return p.Handler.Handle(ctx, page)
}

// Skip decides against the first waiting letter of a sequence. The position
// has to be that letter's, so that two operators do not skip two. What waits
// behind it is then handled by Retry.
//
// It returns ErrReasonNeeded, ErrUnknownProcessor, ErrNothingParked, ErrNotFirst,
// or ErrLetterEnded, which says who was quicker.
func Skip(ctx context.Context, pool *pgxpool.Pool, processor, sequenceKey string, position int64, actor, why string) error {
	if why == "" {
		return ErrReasonNeeded
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := lockToken(ctx, tx, processor, eventstore.PartitionOf(sequenceKey)); err != nil {
			return err
		}
		first, err := firstLetter(ctx, tx, processor, sequenceKey)
		if err != nil && !errors.Is(err, ErrNothingParked) {
			return err
		}
		if first != position {
			if late := ended(ctx, tx, processor, sequenceKey, position); !errors.Is(late, ErrNothingParked) {
				return late
			}
			if err != nil {
				return err
			}
			return ErrNotFirst.With("the first letter of %s is at position %d", sequenceKey, first)
		}
		if _, err := tx.Exec(ctx, `UPDATE dead_letters SET status = 'skipped', reason = $3, resolved_at = clock_timestamp()
			WHERE processor = $1 AND position = $2`, processor, position, why); err != nil {
			return err
		}
		batch := &pgx.Batch{}
		queueHistory(batch, processor, position, HistoryEntry{Outcome: string(Skipped), Actor: actor, Detail: why})
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return record(ctx, tx, processor, actionSkip, actor, &position, &position, why)
	})
	if err != nil {
		return fmt.Errorf("skip %d for %s: %w", position, processor, err)
	}
	return nil
}

// lockToken waits for the page of a partition that is under way and keeps the
// next from beginning until tx ends.
func lockToken(ctx context.Context, tx pgx.Tx, processor string, partition int16) (replayUntil int64, err error) {
	err = tx.QueryRow(ctx, `SELECT replay_until FROM processor_tokens WHERE processor = $1 AND partition = $2 FOR UPDATE`, processor, partition).Scan(&replayUntil)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, ErrUnknownProcessor.With("processor %q has no token of partition %d", processor, partition)
	}
	return replayUntil, err
}

func firstLetter(ctx context.Context, tx pgx.Tx, processor, sequenceKey string) (position int64, err error) {
	err = tx.QueryRow(ctx, `SELECT position FROM dead_letters WHERE processor = $1 AND sequence_key = $2 AND status IN ('parked', 'behind')
		ORDER BY position LIMIT 1`, processor, sequenceKey).Scan(&position)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, ErrNothingParked
	}
	return position, err
}

func (r *Runtime) countWaiting(ctx context.Context, processor, sequenceKey string) (n int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = r.pool.QueryRow(ctx, `SELECT count(*) FROM dead_letters WHERE processor = $1 AND sequence_key = $2 AND status IN ('parked', 'behind')`,
		processor, sequenceKey).Scan(&n)
	return n
}
