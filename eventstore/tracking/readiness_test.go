package tracking

import (
	"math/bits"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// However wake-ups, workers, pauses and time interleave: a partition is with
// one worker at a time, none is handed out before its pause is over, and what
// was heard of a partition is never forgotten.
func TestReadiness(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		pace := time.Duration(rapid.IntRange(0, 3).Draw(t, "pace")) * time.Second
		r := newReadiness(pace, func() time.Time { return now })
		var owed, lent uint64 // owed: heard of and not handed out since
		var heldUntil [64]time.Time
		var lastStart, rested time.Time
		paced := false
		var loans []uint64
		mask := rapid.Uint64()
		t.Repeat(map[string]func(*rapid.T){
			"wake": func(t *rapid.T) {
				m := mask.Draw(t, "partitions")
				r.wake(m, rapid.Bool().Draw(t, "thorough"))
				owed |= m
			},
			"take": func(t *rapid.T) {
				most := rapid.IntRange(1, 64).Draw(t, "most")
				got, thorough, wait := r.pick(most)
				if got == 0 {
					free := owed &^ lent
					if free == 0 {
						return
					}
					if wait <= 0 && pace == 0 {
						for p := range 64 {
							if free&(1<<p) != 0 && !heldUntil[p].After(now) {
								t.Fatalf("partition %d is ready and was not handed out", p)
							}
						}
					}
					if wait <= 0 {
						t.Fatalf("something is ready, and nobody would look again")
					}
					return
				}
				if got&lent != 0 {
					t.Fatalf("%b handed out twice", got&lent)
				}
				if got&^owed != 0 {
					t.Fatalf("%b handed out, nothing was heard of it", got&^owed)
				}
				if thorough&^got != 0 || bits.OnesCount64(got) > most {
					t.Fatalf("handed out %b, thorough %b, at most %d", got, thorough, most)
				}
				for p := range 64 {
					if got&(1<<p) != 0 && heldUntil[p].After(now) {
						t.Fatalf("partition %d handed out before its pause is over", p)
					}
				}
				if paced && now.Before(lastStart.Add(pace)) {
					t.Fatal("a page begins too early")
				}
				if now.Before(rested) {
					t.Fatal("a page begins before the processor has rested")
				}
				lastStart, paced = now, true
				owed &^= got
				lent |= got
				loans = append(loans, got)
			},
			"done": func(t *rapid.T) {
				if len(loans) == 0 {
					return // nothing is lent
				}
				i := rapid.IntRange(0, len(loans)-1).Draw(t, "loan")
				loan := loans[i]
				loans = append(loans[:i], loans[i+1:]...)
				if p := bits.TrailingZeros64(loan); rapid.Bool().Draw(t, "failed") {
					pause := time.Duration(rapid.IntRange(0, 5).Draw(t, "pause")) * time.Second
					r.hold(int16(p), pause)
					heldUntil[p] = now.Add(pause)
					owed |= 1 << p
				}
				more := loan & mask.Draw(t, "more")
				took := time.Duration(rapid.IntRange(0, 500).Draw(t, "took")) * time.Millisecond
				r.done(loan, more, took)
				lent &^= loan
				owed |= more
				if more != 0 {
					paced, rested = false, now // a backlog is not paced
				} else if until := now.Add(min(4*took, time.Second)); pace > 0 && until.After(rested) {
					rested = until
				}
			},
			"pass": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				if r.ready&^r.busy != owed&^lent {
					t.Fatalf("ready %b, owed %b", r.ready&^r.busy, owed&^lent)
				}
			},
		})
	})
}

func TestTakeWaits(t *testing.T) {
	t.Parallel()
	r := newReadiness(0, time.Now)
	type taken struct {
		partitions uint64
		ok         bool
	}
	got := make(chan taken)
	take := func() {
		p, _, ok := r.take(1)
		got <- taken{p, ok}
	}
	go take()
	go take()
	r.wake(0b11, false) // one wake-up, two workers
	if a, b := <-got, <-got; a.partitions|b.partitions != 0b11 {
		t.Errorf("handed out %b and %b", a.partitions, b.partitions)
	}
	r.hold(0, time.Millisecond)
	r.done(0b11, 0, 0)
	go take()
	if a := <-got; a.partitions != 1 {
		t.Errorf("after the pause: %b", a.partitions)
	}
	go take()
	r.stop()
	if a := <-got; a.ok {
		t.Error("a stopped processor hands out work")
	}
}
