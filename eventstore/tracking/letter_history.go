package tracking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
)

// HistoryEntry is something that happened to a letter.
type HistoryEntry struct {
	Outcome string    `json:"outcome"`          // parked, behind, retried, failed or skipped
	Actor   string    `json:"actor,omitempty"`  // who retried, skipped or voided it
	Detail  string    `json:"detail,omitempty"` // the error, the operator's reason, or the note
	At      time.Time `json:"at"`
}

func queueHistory(batch *pgx.Batch, processor string, position int64, e HistoryEntry) {
	batch.Queue(`INSERT INTO dead_letter_history (processor, position, outcome, actor, detail) VALUES ($1, $2, $3, $4, $5)`,
		processor, position, e.Outcome, e.Actor, reason(errors.New(e.Detail)))
}

// voided settles the waiting letters that a condition chooses, since their
// events are read again or stand in rows that were made anew, and tells their
// history so. The condition's parameters are args, from $5.
func voided(ctx context.Context, tx pgx.Tx, processor, mark, actor, why, which string, args ...any) (letters int64, err error) {
	tag, err := tx.Exec(ctx, `WITH void AS (
			UPDATE dead_letters SET status = 'retried', reason = $2, resolved_at = clock_timestamp()
			WHERE processor = $1 AND status IN ('parked', 'behind') AND `+which+` RETURNING processor, position)
		INSERT INTO dead_letter_history (processor, position, outcome, actor, detail) SELECT processor, position, 'retried', $3, $4 FROM void`,
		append([]any{processor, mark, actor, reason(errors.New("void by a " + mark + ": " + why))}, args...)...)
	if err != nil {
		return 0, fmt.Errorf("settle the letters of %q: %w", processor, err)
	}
	return tag.RowsAffected(), nil
}

// ended is the refusal of an operator who comes second: who ended a sequence's
// letter, when and how. Position 0 is the letter that ended last.
func ended(ctx context.Context, q eventstore.Querier, processor, sequenceKey string, position int64) error {
	var (
		at      eventstore.Place
		outcome HistoryEntry
	)
	err := q.QueryRow(ctx, `SELECT l.partition, l.position, h.outcome, h.actor, h.detail, h.at
		FROM dead_letters l JOIN dead_letter_history h USING (processor, position)
		WHERE l.processor = $1 AND l.sequence_key = $2 AND l.status NOT IN ('parked', 'behind') AND ($3 = 0 OR l.position = $3)
			AND h.outcome IN ('retried', 'skipped') ORDER BY h.id DESC LIMIT 1`, processor, sequenceKey, position).
		Scan(&at.Partition, &at.Position, &outcome.Outcome, &outcome.Actor, &outcome.Detail, &outcome.At)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrNothingParked
	case err != nil:
		return fmt.Errorf("read who ended a letter: %w", err)
	}
	said := fmt.Sprintf("%s was %s by %s at %s", at, outcome.Outcome, outcome.Actor, outcome.At.UTC().Format(time.RFC3339))
	if outcome.Detail != "" {
		said += ": " + outcome.Detail
	}
	return ErrLetterEnded.With("%s; nothing of %s waits at %s", said, sequenceKey, processor)
}

// LetterStory is a letter with everything that happened to it, oldest first.
type LetterStory struct {
	Letter
	History []HistoryEntry `json:"history"`
}

// StoryOf reads the letter of a processor at a position. It returns
// ErrNothingParked if there never was one.
func StoryOf(ctx context.Context, q eventstore.Querier, processor string, position int64) (s LetterStory, err error) {
	rows, err := q.Query(ctx, `SELECT `+letterColumns+` FROM dead_letters WHERE processor = $1 AND position = $2`, processor, position)
	if err == nil {
		s.Letter, err = pgx.CollectExactlyOneRow(rows, scanLetter)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return s, ErrNothingParked.With("%s has no dead letter at position %d", processor, position)
	}
	if err != nil {
		return s, fmt.Errorf("read a letter: %w", err)
	}
	rows, err = q.Query(ctx, `SELECT outcome, actor, detail, at FROM dead_letter_history WHERE processor = $1 AND position = $2 ORDER BY id`, processor, position)
	if err == nil {
		s.History, err = pgx.CollectRows(rows, pgx.RowToStructByPos[HistoryEntry])
	}
	if err != nil {
		return s, fmt.Errorf("read a letter's history: %w", err)
	}
	return s, nil
}

// Sequence is a customer with letters waiting at a processor.
type Sequence struct {
	Processor   string
	SequenceKey string
	Letters     int // that wait
}

// Sequences finds the sequences with at least one waiting letter that matches,
// and counts all that wait in each: they are handled in order or not at all.
func Sequences(ctx context.Context, q eventstore.Querier, f LetterFilter) ([]Sequence, error) {
	rows, err := q.Query(ctx, `SELECT processor, sequence_key, count(*) FROM dead_letters WHERE status IN ('parked', 'behind')
		GROUP BY processor, sequence_key HAVING bool_or(`+letterMatches+`) ORDER BY min(position), processor`, f.Processor, f.SequenceKey, f.EventType, f.Error)
	if err != nil {
		return nil, fmt.Errorf("find sequences with letters: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Sequence])
	if err != nil {
		return nil, fmt.Errorf("find sequences with letters: %w", err)
	}
	return found, nil
}
