package eventstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// filled is a log with n events of many customers, and their positions.
func filled(t testing.TB, n int) (s *eventstore.Store, positions []int64) {
	t.Helper()
	s = newStore(t)
	inTx(t, s, func(tx pgx.Tx) {
		for len(positions) < n {
			var batches []eventstore.Batch
			for i := range min(500, n-len(positions)) {
				c := domain.CustomerID(fmt.Sprintf("c%d", len(positions)+i))
				batches = append(batches, batch(c, eventstore.Head{}, "", moved(c, i)))
			}
			results, err := s.AppendTx(t.Context(), tx, batches...)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				positions = append(positions, r.Receipt.Position.Position)
			}
		}
	})
	return s, positions
}

// The whole log comes out in the order of its positions, each event once,
// wherever the pages end.
func TestReadAll(t *testing.T) {
	t.Parallel()
	s, positions := filled(t, 2*eventstore.PageSize+1)
	for _, left := range []int{0, 1, eventstore.PageSize - 1, eventstore.PageSize, eventstore.PageSize + 1, 2 * eventstore.PageSize, 2*eventstore.PageSize + 1} {
		from := len(positions) - left
		after := int64(0)
		if from > 0 {
			after = positions[from-1]
		}
		i := from
		for e, err := range s.ReadAll(t.Context(), after) {
			if err != nil {
				t.Fatal(err)
			}
			if i >= len(positions) || e.Position != positions[i] || e.Event == nil {
				t.Fatalf("%d left: event %d is %+v, want position %d", left, i-from, e, positions[min(i, len(positions)-1)])
			}
			i++
		}
		if i != len(positions) {
			t.Errorf("%d left: %d came", left, i-from)
		}
	}
	newest, err := s.Newest(t.Context(), s.Pool())
	if err != nil {
		t.Fatal(err)
	}
	most := int64(0)
	for _, n := range newest {
		most = max(most, n)
	}
	if most != positions[len(positions)-1] {
		t.Errorf("the newest is %d, want %d", most, positions[len(positions)-1])
	}
}

func TestReadAllOfAnEmptyLog(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for e, err := range s.ReadAll(t.Context(), 0) {
		t.Errorf("an empty log has %+v, %v", e, err)
	}
	if newest, err := s.Newest(t.Context(), s.Pool()); err != nil || newest != [eventstore.Partitions]int64{} {
		t.Errorf("the newest are %v, %v", newest, err)
	}
}

// A reader that stops early leaves nothing behind; one that is interrupted is
// told so, and does not take the part for the whole.
func TestReadAllInterrupted(t *testing.T) {
	s, positions := filled(t, 3*eventstore.PageSize)
	before := goleak.IgnoreCurrent()
	for range s.ReadAll(t.Context(), 0) {
		break
	}
	if n := s.Pool().Stat().AcquiredConns(); n != 0 {
		t.Errorf("who stopped early holds %d connections", n)
	}
	goleak.VerifyNone(t, before)
	for stopAt := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		read := 0
		var interrupted error
		for _, err := range s.ReadAll(ctx, 0) {
			if err != nil {
				interrupted = err
				break
			}
			if read++; read == 1+stopAt*eventstore.PageSize/2 {
				cancel()
			}
		}
		cancel()
		if !errors.Is(interrupted, context.Canceled) && read != len(positions) {
			t.Errorf("interrupted, it gave %d of %d events and said %v", read, len(positions), interrupted)
		}
	}
}

func TestReadAllFails(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if _, err := s.Pool().Exec(t.Context(), `ALTER TABLE events RENAME COLUMN digest TO gone`); err != nil {
		t.Fatal(err)
	}
	failed := false
	for _, err := range s.ReadAll(t.Context(), 0) {
		failed = failed || err != nil
	}
	if !failed {
		t.Error("a log that cannot be read looks empty")
	}
	if _, err := s.Load(t.Context(), s.Pool(), "customer/ada", 0); err == nil {
		t.Error("a stream that cannot be read looks empty")
	}
}
