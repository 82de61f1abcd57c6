package tracking

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// claim is a token that this transaction holds.
type claim struct {
	Partition      int16  `json:"partition"`
	Position       int64  `json:"position"`
	ReplayUntil    int64  `json:"replay_until"`
	StopAt         *int64 `json:"stop_at"`
	Attempts       int    `json:"attempts"`
	FailedPosition *int64 `json:"failed_position"`
	LastError      string `json:"last_error"`
	Newest         int64  `json:"newest"` // of an ordered processor only
}

// suspect reports whether the token's events are handled one by one, because
// a page failed.
func (c claim) suspect() bool { return c.FailedPosition != nil }

// wornOut reports whether the event at position has had its attempts.
func (c claim) wornOut(position int64, most int) bool {
	return c.FailedPosition != nil && *c.FailedPosition == position && c.Attempts >= most
}

// window is how far, in positions, one page looks past its token for wanted
// events: a processor that wants few types still moves on page by page.
const window = 1 << 20

// topic is the events table as watermill's subscriber sees it on behalf of one
// worker: it claims tokens, and moves them when the message is acknowledged.
// The message is the claim; the page is read by whoever handles it.
type topic struct{ worker *worker }

var (
	_ wsql.SchemaAdapter  = topic{}
	_ wsql.OffsetsAdapter = topic{}
)

// SelectQuery is the claim.
func (t topic) SelectQuery(name, processor string, offsets wsql.OffsetsAdapter) wsql.Query {
	return offsets.NextOffsetQuery(name, processor)
}

// NextOffsetQuery locks the tokens of the partitions that the worker was given.
func (t topic) NextOffsetQuery(_, processor string) wsql.Query {
	w := t.worker
	if w.processor.Ordered {
		return wsql.Query{Query: orderedClaimSQL, Args: []any{processor, w.unit.thorough != 0, w.processor.unwanted, w.idleLimit}}
	}
	return wsql.Query{Query: claimSQL, Args: []any{
		processor, partitionsIn(w.unit.offered), partitionsIn(w.unit.thorough), int64(window), w.processor.unwanted, w.idleLimit,
	}}
}

// UnmarshalMessage makes the claim a message.
func (t topic) UnmarshalMessage(row wsql.Scanner) (wsql.Row, error) {
	var claims, limit string
	if err := row.Scan(&claims, &limit); err != nil {
		return wsql.Row{}, fmt.Errorf("scan a claim: %w", err)
	}
	if err := json.Unmarshal([]byte(claims), &t.worker.unit.claims); err != nil {
		return wsql.Row{}, fmt.Errorf("read a claim: %w", err)
	}
	// Offset 0 would mean that nothing was acknowledged; ours are in the claim.
	return wsql.Row{Offset: 1, Msg: message.NewMessage(watermill.NewULID(), message.Payload(claims))}, nil
}

// AckMessageQuery moves the tokens to where the page got.
func (t topic) AckMessageQuery(_ string, _ wsql.Row, processor string) wsql.Query {
	n := len(t.worker.unit.slices)
	partitions, positions, reasons, events := make([]int16, n), make([]int64, n), make([]*string, n), make([]int32, n)
	for i, s := range t.worker.unit.slices {
		partitions[i], positions[i] = s.claim.Partition, s.reached()
		events[i] = int32(s.handled)
		if s.stop != nil {
			reason := s.stop.Error()
			reasons[i] = &reason
		}
	}
	return wsql.Query{Query: ackSQL, Args: []any{processor, t.worker.runtime.owner, partitions, positions, reasons, events}}
}

// ConsumedMessageQuery is none: the claim is the mark.
func (topic) ConsumedMessageQuery(string, wsql.Row, string, []byte) wsql.Query { return wsql.Query{} }

// BeforeSubscribingQueries is none: tokens are made when the runtime starts.
func (topic) BeforeSubscribingQueries(string, string) []wsql.Query { return nil }

// SchemaInitializingQueries is none: tables come from package migrations.
func (topic) SchemaInitializingQueries(string) []wsql.Query { return nil }

// InsertQuery is refused: package eventstore writes the log.
func (topic) InsertQuery(string, message.Messages) (wsql.Query, error) {
	return wsql.Query{}, errors.New("tracking: the log is written by eventstore alone")
}

// SubscribeIsolationLevel lets each statement see what was committed before it.
func (topic) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }
