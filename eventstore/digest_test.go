package eventstore_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// checkChain fails the test unless a whole stream is chained and gapless.
func checkChain(t testing.TB, events []eventstore.Recorded) {
	t.Helper()
	if at := broken(events); at != 0 {
		t.Errorf("%s: the chain breaks at version %d", events[0].Stream, at)
	}
}

// broken is the version at which a stream's chain breaks, 0 if it holds.
func broken(events []eventstore.Recorded) int {
	var previous []byte
	for i, e := range events {
		if e.Version != i+1 || !e.ChainedTo(previous) {
			return i + 1
		}
		previous = e.Digest
	}
	return 0
}

// Whatever is done to a stored row, its chain shows it.
func TestDigestsShowTampering(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, c := range map[string]struct {
		sql  string // OF is the stream's condition
		want int    // the version at which the chain breaks
	}{
		"nothing":                {`SELECT 1`, 0},
		"another payload":        {`UPDATE events SET payload = '{"customer_id":"ada","payment_method_id":"pm_evil"}' WHERE OF AND stream_version = 2`, 2},
		"the same JSON, spaced":  {`UPDATE events SET payload = replace(payload::text, ':', ': ')::json WHERE OF AND stream_version = 3`, 3},
		"another type":           {`UPDATE events SET event_type = 'customer.registered.v1' WHERE OF AND stream_version = 2`, 2},
		"another schema version": {`UPDATE events SET schema_version = 2 WHERE OF AND stream_version = 2`, 2},
		"another actor":          {`UPDATE events SET metadata = '{"actor":"nobody"}' WHERE OF AND stream_version = 4`, 4},
		"another digest":         {`UPDATE events SET digest = sha256('x') WHERE OF AND stream_version = 2`, 2},
		"no digest":              {`UPDATE events SET digest = NULL WHERE OF AND stream_version = 1`, 1},
		"an event removed":       {`DELETE FROM events WHERE OF AND stream_version = 3`, 3},
		"an event removed, and no gap": {`DELETE FROM events WHERE OF AND stream_version = 2;
			UPDATE events SET stream_version = stream_version + 98 WHERE OF AND stream_version > 2;
			UPDATE events SET stream_version = stream_version - 99 WHERE OF AND stream_version > 100`, 2},
		"two events exchanged": {`UPDATE events SET stream_version = 105 - stream_version WHERE OF AND stream_version IN (2, 3);
			UPDATE events SET stream_version = stream_version - 100 WHERE OF AND stream_version > 100`, 2},
		"a payload and its own digest": {`UPDATE events SET payload = '{}', digest = sha256('{}') WHERE OF AND stream_version = 2`, 2},
		"a later digest on an earlier": {`UPDATE events e SET digest = (SELECT digest FROM events l WHERE l.OF AND l.stream_version = 4) WHERE OF AND stream_version = 3`, 3},
	} {
		id := domain.CustomerID(strings.NewReplacer(" ", "-", ",", "").Replace(name))
		var head eventstore.Head
		for n := range 5 {
			head = eventstore.HeadOf(mustAppend(t, s, batch(id, head, "", moved(id, n))))
		}
		sql := strings.ReplaceAll(c.sql, "OF", "stream_id = 'customer/"+string(id)+"'")
		if _, err := s.Pool().Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := broken(load(t, s, id)); got != c.want {
			t.Errorf("%s: the chain breaks at %d, want %d", name, got, c.want)
		}
	}
	// Events moved to another stream, as a whole.
	head := eventstore.HeadOf(mustAppend(t, s, batch("from", eventstore.Head{}, "", moved("from", 1))))
	mustAppend(t, s, batch("from", head, "", moved("from", 2)))
	if _, err := s.Pool().Exec(t.Context(), `UPDATE events SET stream_id = 'customer/to' WHERE stream_id = 'customer/from'`); err != nil {
		t.Fatal(err)
	}
	if got := broken(load(t, s, "to")); got != 1 {
		t.Errorf("moved to another stream: the chain breaks at %d", got)
	}
}

// The digest is part of every stored row, so its recipe never changes.
func TestDigestRecipe(t *testing.T) {
	t.Parallel()
	previous := bytes.Repeat([]byte{7}, 32)
	e := eventstore.Recorded{
		Stream: "customer/ada", Version: 300, Type: "customer.payment_method_changed.v1", SchemaVersion: 1,
		Payload: []byte(`{"customer_id":"ada","payment_method_id":"pm_1"}`), Metadata: []byte(`{"actor":"tester"}`),
	}
	var text []byte
	for _, part := range []any{previous, string(e.Stream), uint64(300), e.Type, uint64(1), []byte(e.Payload), []byte(e.Metadata)} {
		switch part := part.(type) {
		case uint64:
			text = binary.BigEndian.AppendUint64(text, part)
		case string:
			text = append(binary.BigEndian.AppendUint64(text, uint64(len(part))), part...)
		case []byte:
			text = append(binary.BigEndian.AppendUint64(text, uint64(len(part))), part...)
		}
	}
	sum := sha256.Sum256(text)
	e.Digest = sum[:]
	if !e.ChainedTo(previous) {
		t.Error("the digest is not over each part with its length in front")
	}
	if got, want := hex.EncodeToString(sum[:]), "16bf238bcbae1291f269ca32d8b29a5184425cd7e04b014239fb7270aa0728eb"; got != want {
		t.Errorf("the digest is %s, want %s", got, want)
	}
	if e.ChainedTo(nil) || e.ChainedTo(sum[:]) {
		t.Error("it follows anything")
	}
}
