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
	Actor   string    `json:"actor,omitempty"`  // who retried or skipped it
	Detail  string    `json:"detail,omitempty"` // the error, the operator's reason, or the note
	At      time.Time `json:"at"`
}

func queueHistory(batch *pgx.Batch, processor string, position int64, e HistoryEntry) {
	batch.Queue(`INSERT INTO dead_letter_history (processor, position, outcome, actor, detail) VALUES ($1, $2, $3, $4, $5)`,
		processor, position, e.Outcome, e.Actor, reason(errors.New(e.Detail)))
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
