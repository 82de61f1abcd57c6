package tracking_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

func resettable(name string) tracking.Processor {
	p := inOrder(name)
	p.Reset = func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM seen WHERE processor = $1`, name)
		return err
	}
	return p
}

func TestResetUnderLoad(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`CREATE TABLE elsewhere (n int)`)
	p := resettable("rebuilt")
	p.PageSize = 20
	for range 2 {
		h.run(tracking.Options{}, p)
	}
	stop := h.writers(3)
	for n := range 5 {
		h.untilAppended(100 * (n + 1))
		if err := tracking.Reset(t.Context(), h.pool, p, 1, "ann", "to see"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	h.caughtUp("rebuilt")
	h.exactlyOnce("rebuilt")
	if s := h.status("rebuilt"); s.Replaying || s.Letters != 0 {
		t.Errorf("after the rebuild: replaying %v, %d letters", s.Replaying, s.Letters)
	}
	if n := value[int](h, `SELECT count(*) FROM seen WHERE replay`); n < 100 {
		t.Errorf("%d events were flagged as replays, at least 100 were", n)
	}
	if n := value[int](h, `SELECT count(*) FROM processor_runs WHERE action = 'reset' AND actor = 'ann' AND reason = 'to see'`); n != 5 {
		t.Errorf("%d resets on record, want 5", n)
	}
}

func TestReplayFlagEndsWhereTheResetWas(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	p := resettable("flagged")
	h.run(tracking.Options{}, p)
	first := h.append("a", eventstore.Head{}, registered("a"))
	h.caughtUp("flagged")
	if err := tracking.Reset(t.Context(), h.pool, p, 0, "ann", "to see"); err != nil {
		t.Fatal(err)
	}
	h.append("a", first.Head(), changed("a", 2))
	h.caughtUp("flagged")
	if got := value[string](h, `SELECT string_agg(version || ' ' || replay, ', ' ORDER BY position) FROM seen`); got != "1 true, 2 false" {
		t.Errorf("replay flags: %s", got)
	}
}

func TestResetRefused(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	effectful := inOrder("effects")
	effectful.Kind, effectful.Start = tracking.Effectful, tracking.Beginning
	for what, c := range map[string]struct {
		p    tracking.Processor
		why  string
		want error
	}{
		"effectful":      {effectful, "why not", tracking.ErrEffectful},
		"says not how":   {inOrder("plain"), "why not", tracking.ErrNotResettable},
		"no reason":      {resettable("a"), "", tracking.ErrReasonNeeded},
		"never ran here": {resettable("a"), "why not", tracking.ErrUnknownProcessor},
	} {
		if err := tracking.Reset(t.Context(), h.pool, c.p, 1, "ann", c.why); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.run(tracking.Options{}, inOrder("paused"))
	h.append("a", eventstore.Head{}, registered("a"))
	h.caughtUp("paused")
	if err := tracking.Pause(t.Context(), h.pool, "paused", "ann", "repairs"); err != nil {
		t.Fatal(err)
	}
	b := h.append("b", eventstore.Head{}, registered("b"))
	h.run(tracking.Options{}, inOrder("other"))
	h.caughtUp("other")
	if s := h.status("paused"); !s.Paused || s.BehindEvents != 1 || s.CaughtUp || s.Partitions[b.Partition].BehindSeconds <= 0 {
		t.Errorf("status: %+v", s.Partitions[b.Partition])
	}
	if err := tracking.Resume(t.Context(), h.pool, "paused", "ann", "repaired"); err != nil {
		t.Fatal(err)
	}
	h.caughtUp("paused")
	h.exactlyOnce("paused")
	if err := tracking.Pause(t.Context(), h.pool, "nobody", "ann", "why not"); !errors.Is(err, tracking.ErrUnknownProcessor) {
		t.Errorf("pause of nobody: %v", err)
	}
}

func TestLostTokens(t *testing.T) {
	t.Parallel()
	replays := func(h *house, processor string) string {
		return value[string](h, `SELECT string_agg(customer || ' ' || replay, ', ' ORDER BY position) FROM seen WHERE processor = '`+processor+`'`)
	}
	t.Run("of an effectful processor", func(t *testing.T) {
		t.Parallel()
		h := newHouse(t)
		p := tracking.Processor{Name: "effects", Kind: tracking.Effectful, Start: tracking.Head}
		p.Handler = tracking.HandlerFunc(func(ctx context.Context, page *tracking.Page) error {
			for _, e := range page.Events { // keyed writes, as such a processor's must be
				if _, err := page.Tx.Exec(ctx, `INSERT INTO seen VALUES ('effects', $1, $2, $3, 1, $4)
					ON CONFLICT (processor, position) DO UPDATE SET replay = excluded.replay`, e.Partition, e.Position, e.SequenceKey, page.Replay(e)); err != nil {
					return err
				}
			}
			return nil
		})
		r := h.run(tracking.Options{}, p)
		h.caughtUp("effects")
		h.append("a", eventstore.Head{}, registered("a"))
		h.caughtUp("effects")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		h.exec(`DELETE FROM processor_tokens`)
		if s := h.status("effects"); s.CaughtUp || !s.Partitions[0].Missing {
			t.Errorf("without tokens: caught up %v, missing %v", s.CaughtUp, s.Partitions[0].Missing)
		}
		registry := prometheus.NewRegistry()
		h.run(tracking.Options{Registry: registry}, p)
		h.caughtUp("effects")
		h.append("b", eventstore.Head{}, registered("b"))
		h.caughtUp("effects")
		if got := replays(h, "effects"); got != "a true, b false" {
			t.Errorf("replays: %s", got)
		}
		if n := metric(t, registry, "billonce_processor_lost_tokens_total"); n != eventstore.Partitions {
			t.Errorf("%v tokens lost, want all", n)
		}
	})
	t.Run("of a pure processor while it runs", func(t *testing.T) {
		t.Parallel()
		h := newHouse(t)
		h.fill(30, 2)
		h.run(tracking.Options{}, resettable("pure"))
		h.caughtUp("pure")
		h.exec(`DELETE FROM processor_tokens WHERE partition = $1`, eventstore.PartitionOf("c1"))
		h.caughtUp("pure")
		h.exactlyOnce("pure") // emptied and rebuilt: not one row twice
		if n := value[int](h, `SELECT count(*) FROM seen WHERE replay`); n != 60 {
			t.Errorf("%d replays, want 60", n)
		}
		if n := value[int](h, `SELECT count(*) FROM processor_runs WHERE action = 'tokens lost'`); n != 1 {
			t.Errorf("the loss is %d times on record", n)
		}
	})
}

func TestStart(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(10, 1)
	head := inOrder("head")
	head.Start = tracking.Head
	r := h.run(tracking.Options{}, head)
	h.caughtUp("head")
	h.append("a", eventstore.Head{}, registered("a"))
	h.caughtUp("head")
	if got := value[string](h, `SELECT string_agg(customer, ' ') FROM seen`); got != "a" {
		t.Errorf("from the head: %q, want a", got)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	h.append("b", eventstore.Head{}, registered("b"))
	h.run(tracking.Options{}, head) // it is not new any more
	h.caughtUp("head")
	if got := value[string](h, `SELECT string_agg(customer, ' ' ORDER BY position) FROM seen`); got != "a b" {
		t.Errorf("after a restart: %q, want a b", got)
	}
}
