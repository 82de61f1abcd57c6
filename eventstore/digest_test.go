package eventstore_test

import (
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

func TestDigestsChain(t *testing.T) {
	t.Parallel()
	for what, tampering := range map[string]struct {
		sql  string
		want int
	}{
		"nothing":                      {`SELECT 1`, 0},
		"another payload":              {`UPDATE events SET payload = '{"customer_id":"ada","payment_method_id":"pm_evil"}' WHERE stream_version = 2`, 2},
		"the same JSON, spaced":        {`UPDATE events SET payload = replace(payload::text, ':', ': ')::json WHERE stream_version = 3`, 3},
		"another type":                 {`UPDATE events SET event_type = 'customer.registered.v1' WHERE stream_version = 2`, 2},
		"another schema version":       {`UPDATE events SET schema_version = 2 WHERE stream_version = 2`, 2},
		"another actor":                {`UPDATE events SET metadata = '{"actor":"nobody"}' WHERE stream_version = 4`, 4},
		"another digest":               {`UPDATE events SET digest = sha256('x') WHERE stream_version = 2`, 2},
		"no digest":                    {`UPDATE events SET digest = NULL WHERE stream_version = 1`, 1},
		"an event removed":             {`DELETE FROM events WHERE stream_version = 3`, 3},
		"an event removed, and no gap": {`DELETE FROM events WHERE stream_version = 2; UPDATE events SET stream_version = stream_version + 98 WHERE stream_version > 2; UPDATE events SET stream_version = stream_version - 99 WHERE stream_version > 100`, 2},
		"two events in another order":  {`UPDATE events SET stream_version = 105 - stream_version WHERE stream_version IN (2, 3); UPDATE events SET stream_version = stream_version - 100 WHERE stream_version > 100`, 2},
		"moved to another stream":      {`UPDATE events SET stream_id = 'customer/bob'`, 1},
		"a payload and its own digest": {`UPDATE events SET payload = '{}', digest = sha256('{}') WHERE stream_version = 2`, 2},
		"a later digest in an earlier": {`UPDATE events e SET digest = (SELECT digest FROM events l WHERE l.stream_version = 4) WHERE stream_version = 3`, 3},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			var head eventstore.Head
			for n := range 5 {
				r := mustAppend(t, s, batch("ada", head, "", moved("ada", n)))
				head = eventstore.HeadOf(r)
			}
			if _, err := s.Pool().Exec(t.Context(), tampering.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
			owner := domain.CustomerID("ada")
			if what == "moved to another stream" {
				owner = "bob"
			}
			if got := broken(load(t, s, owner)); got != tampering.want {
				t.Errorf("the chain breaks at %d, want %d", got, tampering.want)
			}
		})
	}
}
