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
// run's key, the hottest that it can be, beside the least that two commits cost:
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
		Run: "bench", Grant: policy.Grant{Rules: policy.RunRules, Manifest: true}, Caps: []ledger.CapTerms{{Currency: "usd", Minor: 1 << 60}},
	})
	if err != nil {
		b.Fatal(err)
	}
	var made, known atomic.Int64
	body := make([]byte, 1500)
	shown := func(n int64, state policy.ObjectState) policy.Evidence {
		return intentOf(fmt.Sprintf("pi_%d", n), bill(fmt.Sprintf("c%d", n)), state, 5000)
	}
	learn := func() {
		var seen []policy.Evidence
		var owed []ledger.Entry
		for range benchSize {
			n := known.Add(1)
			seen, owed = append(seen, shown(n, policy.Unpaid)), append(owed, entry(fmt.Sprintf("c%d", n), 5000))
		}
		if _, err := l.Register(b.Context(), k.ID, all(owed)); err != nil {
			b.Fatal(err)
		}
		if err := l.Observe(b.Context(), seen); err != nil {
			b.Fatal(err)
		}
		made.Store(known.Load() - benchSize)
	}
	call := func() error {
		n := made.Add(1)
		a := ledger.Ask{ID: uuid.NewString(), VaultKey: k.ID, Call: confirm(confirmKey(bill(fmt.Sprintf("c%d", n)), 1, 1), fmt.Sprintf("pi_%d", n)), Verdict: policy.Verdict{Allow: true}}
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

// BenchmarkManifest registers a manifest of 100,000 bills, then the same again.
func BenchmarkManifest(b *testing.B) {
	const bills = 100_000
	l := ledger.New(pgtest.Connect(b, database(b), 4), ledger.Options{Log: discard})
	entries := make([]ledger.Entry, bills)
	for i := range entries {
		entries[i] = entry(fmt.Sprintf("cust_%06d", i), 5000)
	}
	var first, again []float64
	for b.Loop() {
		k, _, _, err := l.Issue(b.Context(), ledger.Issue{Run: uuid.NewString(), Grant: policy.Grant{Rules: policy.RunRules, Manifest: true}})
		if err != nil {
			b.Fatal(err)
		}
		for _, took := range []*[]float64{&first, &again} {
			start := time.Now()
			done, err := l.Register(b.Context(), k.ID, all(entries))
			if err != nil || done.New+done.Changed+done.Unchanged != bills || done.Expected[0].Cap != bills*5500 {
				b.Fatal(done, err)
			}
			*took = append(*took, time.Since(start).Seconds())
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(first), "s/manifest")
	b.ReportMetric(median(again), "s/repeat")
	fmt.Printf("bench: manifest-100k %.0f bills/s ratio=%.2f\n", bills/median(first), median(first)/median(again))
}
