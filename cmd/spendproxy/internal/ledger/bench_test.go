package ledger_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/eventstore/pgtest"
)

const (
	callers   = 32
	turns     = 7
	benchSize = 1920 // money calls in a turn
)

// BenchmarkMoneyCalls measures Begin and Finish of confirms by 32 callers of one
// vault key, the hottest that it can be, beside the least that two commits cost:
// two single-row inserts by as many callers, on the same durable server, in
// turns.
func BenchmarkMoneyCalls(b *testing.B) {
	dsn := database(b)
	pool := pgtest.Connect(b, dsn, callers+2)
	if _, err := pool.Exec(b.Context(), `CREATE TABLE floor (id text PRIMARY KEY, data text NOT NULL)`); err != nil {
		b.Fatal(err)
	}
	l := ledger.New(pool, ledger.Options{Log: discard})
	k, _, _, err := l.Issue(b.Context(), ledger.Issue{
		Run: "bench", Grant: policy.Grant{Rules: everything}, Caps: []ledger.CapTerms{{Currency: "usd", Minor: 1 << 60}},
	})
	if err != nil {
		b.Fatal(err)
	}
	var made, known atomic.Int64
	body := make([]byte, 1500)
	shown := func(n int64, state policy.ObjectState) policy.Evidence {
		e := intent(fmt.Sprintf("pi_%d", n), state, 5000)
		e.Bill = bill(fmt.Sprintf("c%d", n))
		return e
	}
	learn := func() {
		var seen []policy.Evidence
		for range benchSize {
			seen = append(seen, shown(known.Add(1), policy.Unpaid))
		}
		if err := l.Observe(b.Context(), seen); err != nil {
			b.Fatal(err)
		}
		made.Store(known.Load() - benchSize)
	}
	call := func() error {
		n := made.Add(1)
		a := ledger.Ask{ID: uuid.NewString(), VaultKey: k.ID, Call: confirm(fmt.Sprintf("key-%d", n), fmt.Sprintf("pi_%d", n)), Verdict: policy.Verdict{Allow: true}}
		d, err := l.Begin(b.Context(), a)
		if err != nil || !d.Forward {
			return fmt.Errorf("%+v, %w", d, err)
		}
		e := shown(n, policy.Succeeded)
		return l.Finish(b.Context(), ledger.Result{
			ID: a.ID, Fate: ledger.Answered, Evidence: &e, Answer: ledger.Answer{Status: 200, ContentType: "application/json", Body: body},
		})
	}
	var rows atomic.Int64
	floor := func() error {
		for range 2 {
			if _, err := pool.Exec(b.Context(), `INSERT INTO floor VALUES ($1, $2)`, fmt.Sprintf("row-%d", rows.Add(1)), "some text of a row"); err != nil {
				return err
			}
		}
		return nil
	}
	rate := func(work func() error) float64 {
		var running sync.WaitGroup
		start := time.Now()
		for range callers {
			running.Go(func() {
				for range benchSize / callers {
					if err := work(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		running.Wait()
		return benchSize / time.Since(start).Seconds()
	}
	learn()
	rate(floor)
	rate(call)
	var raw, calls, ratios []float64
	for b.Loop() {
		for range turns {
			learn()
			raw, calls = append(raw, rate(floor)), append(calls, rate(call))
			ratios = append(ratios, calls[len(calls)-1]/raw[len(raw)-1])
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(raw), "floor_calls/s")
	b.ReportMetric(median(calls), "calls/s")
	b.ReportMetric(median(ratios), "ratio")
	fmt.Printf("bench: money-calls-%dw %.0f calls/s ratio=%.2f\n", callers, median(calls), median(ratios))
}

func median(xs []float64) float64 {
	slices.Sort(xs)
	return xs[len(xs)/2]
}
