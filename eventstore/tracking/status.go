package tracking

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
)

// ProcessorStatus is how a processor stands, over all partitions.
type ProcessorStatus struct {
	Processor string `json:"processor"`
	// CaughtUp: it has all its tokens, every event of the log is behind them, none
	// of those was set aside, and nobody is just appending.
	CaughtUp bool `json:"caught_up"`
	// BehindEvents counts the events after its tokens, exactly, whether it wants
	// them or not; BehindSeconds is the age of the oldest of them.
	BehindEvents  int64   `json:"behind_events"`
	BehindSeconds float64 `json:"behind_seconds"`
	// EventsPerSecond is what all replicas together have handled over about the
	// last ten seconds.
	EventsPerSecond float64 `json:"events_per_second"`
	Parked          int     `json:"parked"`  // sequences set aside
	Letters         int     `json:"letters"` // events waiting in them
	Paused          bool    `json:"paused"`  // some of its partitions are
	// StopAt is the position at which a bounded run ends ([RunTo]); 0: none.
	// Stopped: every partition has come to its last event up to there.
	StopAt     int64             `json:"stop_at,omitempty"`
	Stopped    bool              `json:"stopped"`
	Replaying  bool              `json:"replaying"`
	LastError  string            `json:"last_error,omitempty"`
	PassedOver []Passed          `json:"passed_over,omitempty"` // by a tolerant one; never by others
	Partitions []PartitionStatus `json:"partitions"`
}

// PartitionStatus is how a processor stands in one partition.
type PartitionStatus struct {
	Partition       int16     `json:"partition"`
	Token           int64     `json:"token"`   // position of the last event handled or passed over
	Missing         bool      `json:"missing"` // there is no token
	Newest          int64     `json:"newest"`  // position of the newest event there is
	Appending       bool      `json:"appending"`
	BehindEvents    int64     `json:"behind_events"`
	BehindSeconds   float64   `json:"behind_seconds"` // age of the oldest of them, by the database's clock
	EventsPerSecond float64   `json:"events_per_second"`
	Paused          bool      `json:"paused"`
	StopAt          int64     `json:"stop_at,omitempty"`
	Stopped         bool      `json:"stopped"`
	Replaying       bool      `json:"replaying"`
	Attempts        int       `json:"attempts"`
	NotBefore       time.Time `json:"not_before,omitzero"`
	LastError       string    `json:"last_error,omitempty"`
	Owner           string    `json:"owner,omitempty"` // the process that moved it last
	UpdatedAt       time.Time `json:"updated_at,omitzero"`
}

// Status tells how the named processors stand, or all that have ever run.
func Status(ctx context.Context, q eventstore.Querier, processors ...string) ([]ProcessorStatus, error) {
	if processors == nil {
		processors = []string{}
	}
	rows, err := q.Query(ctx, statusSQL, processors)
	if err != nil {
		return nil, fmt.Errorf("read the status of processors: %w", err)
	}
	defer rows.Close()
	var all []ProcessorStatus
	for rows.Next() {
		var name string
		var s PartitionStatus
		var notBefore, updated *time.Time
		if err := rows.Scan(&name, &s.Partition, &s.Token, &s.Missing, &s.Newest, &s.Appending, &s.BehindEvents, &s.BehindSeconds,
			&s.Paused, &s.Replaying, &s.Attempts, &notBefore, &s.LastError, &s.Owner, &updated, &s.EventsPerSecond, &s.StopAt, &s.Stopped); err != nil {
			return nil, fmt.Errorf("read the status of processors: %w", err)
		}
		if notBefore != nil {
			s.NotBefore = *notBefore
		}
		if updated != nil {
			s.UpdatedAt = *updated
		}
		if len(all) == 0 || all[len(all)-1].Processor != name {
			all = append(all, ProcessorStatus{Processor: name, CaughtUp: true, Stopped: true})
		}
		all[len(all)-1].add(s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the status of processors: %w", err)
	}
	if err := countLetters(ctx, q, all); err != nil {
		return nil, err
	}
	return all, addPassed(ctx, q, all)
}

func (s *ProcessorStatus) add(p PartitionStatus) {
	s.Partitions = append(s.Partitions, p)
	s.CaughtUp = s.CaughtUp && !p.Missing && !p.Appending && p.Token == p.Newest
	s.BehindEvents += p.BehindEvents
	s.EventsPerSecond += p.EventsPerSecond
	s.BehindSeconds = max(s.BehindSeconds, p.BehindSeconds)
	s.Paused = s.Paused || p.Paused
	s.StopAt, s.Stopped = max(s.StopAt, p.StopAt), s.Stopped && p.Stopped
	s.Replaying = s.Replaying || p.Replaying
	if s.LastError == "" {
		s.LastError = p.LastError
	}
}

// LetterCount is what waits in the dead letters of a processor.
type LetterCount struct {
	Processor string
	Letters   int // events that wait, those behind another one included
	Sequences int // customers that they belong to
}

// CountLetters counts the letters that wait, by processor. Processors without
// any are left out.
func CountLetters(ctx context.Context, q eventstore.Querier) ([]LetterCount, error) {
	rows, err := q.Query(ctx, `SELECT processor, count(*), count(DISTINCT sequence_key) FROM dead_letters
		WHERE status IN ('parked', 'behind') GROUP BY processor ORDER BY processor`)
	if err != nil {
		return nil, fmt.Errorf("count letters: %w", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[LetterCount])
	if err != nil {
		return nil, fmt.Errorf("count letters: %w", err)
	}
	return counts, nil
}

func countLetters(ctx context.Context, q eventstore.Querier, all []ProcessorStatus) error {
	counts, err := CountLetters(ctx, q)
	for _, c := range counts {
		if i := slices.IndexFunc(all, func(s ProcessorStatus) bool { return s.Processor == c.Processor }); i >= 0 {
			all[i].Letters, all[i].Parked, all[i].CaughtUp = c.Letters, c.Sequences, false
		}
	}
	return err
}

// Status is the package's Status of all processors that have ever run.
func (r *Runtime) Status(ctx context.Context) ([]ProcessorStatus, error) {
	return Status(ctx, r.pool)
}

// Vector is a place in each partition: how far a processor, and so what it
// writes, has come.
type Vector [eventstore.Partitions]int64

// AsOf reads the tokens of a processor. Read in the same statement snapshot or
// repeatable-read transaction as a projection's tables, it is exactly what they
// are as of; in another, before them, it is a lower bound.
func AsOf(ctx context.Context, q eventstore.Querier, processor string) (v Vector, err error) {
	rows, err := q.Query(ctx, `SELECT partition, position FROM processor_tokens WHERE processor = $1`, processor)
	if err != nil {
		return v, fmt.Errorf("read the tokens of %s: %w", processor, err)
	}
	var partition int16
	var position int64
	if _, err := pgx.ForEachRow(rows, []any{&partition, &position}, func() error {
		v[partition] = position
		return nil
	}); err != nil {
		return v, fmt.Errorf("read the tokens of %s: %w", processor, err)
	}
	return v, nil
}

// Place is how far v has come in a partition.
func (v Vector) Place(partition int16) eventstore.Place {
	return eventstore.Place{Partition: partition, Position: v[partition]}
}

// Covers reports whether v has come as far as p.
func (v Vector) Covers(p eventstore.Place) bool { return v[p.Partition] >= p.Position }

// String spells the places that are not empty: 3-17 17-40213.
func (v Vector) String() string {
	var places []string
	for partition := range int16(eventstore.Partitions) {
		if p := v.Place(partition); p.Position != 0 {
			places = append(places, p.String())
		}
	}
	return strings.Join(places, " ")
}

// MarshalText spells the vector.
func (v Vector) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Token reads one token of a processor. It returns ErrUnknownProcessor if there
// is none.
func Token(ctx context.Context, q eventstore.Querier, processor string, partition int16) (eventstore.Place, error) {
	at := eventstore.Place{Partition: partition}
	rows, err := q.Query(ctx, `SELECT position FROM processor_tokens WHERE processor = $1 AND partition = $2`, processor, partition)
	if err != nil {
		return at, fmt.Errorf("read a token of %s: %w", processor, err)
	}
	positions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return at, fmt.Errorf("read a token of %s: %w", processor, err)
	}
	if len(positions) == 0 {
		return at, fmt.Errorf("read a token of %s: %w", processor, ErrUnknownProcessor)
	}
	at.Position = positions[0]
	return at, nil
}

// waitPoll is how often WaitFor reads the token when nothing is heard of it:
// another process may be the one that moves it.
const waitPoll = 50 * time.Millisecond

// WaitFor waits until the processor has handled the log up to place, so that
// what the caller wrote can be read in its tables. It returns the error of ctx
// if that ends first, or ErrUnknownProcessor.
func (r *Runtime) WaitFor(ctx context.Context, processor string, place eventstore.Place) error {
	p, here := r.processor(processor)
	for first := true; ; first = false {
		var moved <-chan struct{}
		if here {
			moved = p.nextMove() // before the token is read, so that no move is missed
		}
		at, err := Token(ctx, r.pool, processor, place.Partition)
		if err != nil && !(here && errors.Is(err, ErrUnknownProcessor)) { // it is only just starting, or about to find its tokens lost
			return err
		}
		if at.Position >= place.Position {
			return nil
		}
		if here && first {
			p.ready.wake(1<<place.Partition, true) // it may want none of it; the token moves all the same
		}
		poll := time.NewTimer(waitPoll)
		select {
		case <-moved:
		case <-poll.C:
		case <-ctx.Done():
			poll.Stop()
			return fmt.Errorf("wait for %s to reach %s: %w", processor, place, ctx.Err())
		}
		poll.Stop()
	}
}
