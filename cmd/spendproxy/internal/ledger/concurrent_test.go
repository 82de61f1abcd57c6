package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// 150 charges at once, through three proxies, under a cap for eleven.
func TestC029_CapHoldsUnderConcurrency(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(110_000)
	proxies := []*ledger.Ledger{r.beside(r.dsn), r.beside(r.dsn), r.beside(r.dsn)}
	var passed, refused atomic.Int64
	var calling sync.WaitGroup
	for p, l := range proxies {
		for i := range 50 {
			calling.Go(func() {
				a := ask(k, charge(fmt.Sprintf("k%d-%d", p, i), 10_000))
				d, err := l.Begin(t.Context(), a)
				switch {
				case err != nil:
					t.Error(err)
				case d.Forward:
					passed.Add(1)
					if err := l.Finish(t.Context(), paid(a.ID, ch(fmt.Sprintf("ch_%d_%d", p, i), 10_000))); err != nil {
						t.Error(err)
					}
				case d.Verdict.Code == policy.CodeCapExceeded && d.Verdict.Status == 429:
					refused.Add(1)
				default:
					t.Errorf("%+v", d)
				}
			})
		}
	}
	calling.Wait()
	if passed.Load() != 11 || refused.Load() != 139 {
		t.Errorf("%d passed and %d were refused, want 11 and 139", passed.Load(), refused.Load())
	}
	r.wantBooks(k, 110_000, 0, 11)
}

// 60 confirms of one intent at once, under ever other keys, reserve once; 60
// creates of one bill's charges under random keys reserve nothing.
func TestOneBillManyCallers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(1000)
	r.observe(intent("pi_1", policy.Unpaid, 400))
	proxies := []*ledger.Ledger{r.beside(r.dsn), r.beside(r.dsn), r.beside(r.dsn)}
	var calling sync.WaitGroup
	var passed atomic.Int64
	for i := range 60 {
		calling.Go(func() {
			d, err := proxies[i%3].Begin(t.Context(), ask(k, confirm(fmt.Sprintf("k%d", i), "pi_1")))
			if err != nil {
				t.Error(err)
			}
			if d.Forward {
				passed.Add(1)
			}
		})
	}
	calling.Wait()
	if passed.Load() != 60 {
		t.Errorf("%d passed", passed.Load())
	}
	r.wantBooks(k, 0, 400, 1)
	r.observe(intent("pi_1", policy.Succeeded, 400))
	r.wantBooks(k, 400, 0, 1)
}

// The answer to Begin's commit is lost: the caller hears an error and sends
// nothing. Its repeat passes and reserves nothing more, and what nobody sent does
// not stay held.
func TestBeginsCommitAnswerIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(5000)
	proxy := pgtest.NewProxy(t, r.dsn)
	l := r.beside(proxy.DSN())
	done := running(t, l)
	for n, whose := range []string{"same call", "same key", "never again"} {
		c := charge(whose, 1000)
		a := ask(k, c)
		lost := proxy.DropServerToClientOnCommit("spendproxy.subjects")
		d, err := l.Begin(t.Context(), a)
		<-lost
		if !errors.Is(err, ledger.ErrCommitUnknown) || d.Forward {
			t.Fatalf("%s: %+v, %v", whose, d, err)
		}
		if whose == "never again" {
			eventually(t, "the room is back", func() bool { return r.books(k).Held == 0 })
			continue
		}
		if n == 1 {
			a = ask(k, c)
		}
		if d, err := l.Begin(t.Context(), a); err != nil || !d.Forward {
			t.Fatalf("%s, again: %+v, %v", whose, d, err)
		}
		r.wantBooks(k, 0, 1000, 1)
		eventually(t, "the lost call is taken back", func() bool { return l.Kept() == 0 })
		if err := l.Finish(t.Context(), declined(a.ID)); err != nil {
			t.Fatal(err)
		}
		r.wantBooks(k, 0, 0, 0)
	}
	done()
}

// The answer to Finish's commit is lost: the result is written again, and booked
// and told once.
func TestFinishsCommitAnswerIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(5000)
	proxy := pgtest.NewProxy(t, r.dsn)
	l := r.beside(proxy.DSN())
	done := running(t, l)
	a := ask(k, charge("k1", 1000))
	if d, err := l.Begin(t.Context(), a); err != nil || !d.Forward {
		t.Fatal(d, err)
	}
	lost := proxy.DropServerToClientOnCommit("spendproxy.answers")
	err := l.Finish(t.Context(), paid(a.ID, ch("ch_1", 1000)))
	<-lost
	if !errors.Is(err, ledger.ErrCommitUnknown) {
		t.Fatal(err)
	}
	eventually(t, "the result is written", func() bool { return l.Kept() == 0 })
	r.wantBooks(k, 1000, 0, 1)
	calls, _, err := r.Calls(t.Context(), ledger.CallFilter{IdempotencyKey: "k1"})
	if err != nil || len(calls) != 2 || calls[0].Phase != "before" || calls[1].Phase != "after" || calls[1].Reservation != "settled" {
		t.Errorf("%+v, %v", calls, err)
	}
	done()
}

// The database is away in the middle of everything: every answer is an error, no
// yes is false, and what came back meanwhile is written when it is there again.
func TestDatabaseIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(100_000)
	_, secret, _, err := r.Issue(t.Context(), ledger.Issue{Label: "another", Grant: policy.Grant{Rules: everything}})
	if err != nil {
		t.Fatal(err)
	}
	proxy := pgtest.NewProxy(t, r.dsn)
	l := r.beside(proxy.DSN())
	var ids []string
	for i := range 10 {
		a := ask(k, charge(fmt.Sprint("k", i), 1000))
		if d, err := l.Begin(t.Context(), a); err != nil || !d.Forward {
			t.Fatal(d, err)
		}
		ids = append(ids, a.ID)
	}
	stop := make(chan struct{})
	var cutting, calling sync.WaitGroup
	cutting.Go(func() { // no connection lives long enough to be of use
		for {
			select {
			case <-stop:
				return
			default:
				proxy.CutAll()
			}
		}
	})
	var yes atomic.Int64
	for i, id := range ids {
		calling.Go(func() { _ = l.Finish(t.Context(), paid(id, ch(fmt.Sprint("ch_", i), 1000))) })
		calling.Go(func() {
			if d, err := l.Begin(t.Context(), ask(k, charge(fmt.Sprint("n", i), 1000))); err == nil && d.Forward {
				yes.Add(1)
			}
		})
		calling.Go(func() { _, _, _, _ = l.Authenticate(t.Context(), secret) })
	}
	calling.Wait()
	close(stop)
	cutting.Wait()
	done := running(t, l)
	eventually(t, "all results are written", func() bool { return l.Kept() == 0 })
	held := yes.Load() * 1000
	r.wantBooks(k, 10_000, held, 10+yes.Load())
	if _, ok, _, err := l.Authenticate(t.Context(), secret); err != nil || !ok {
		t.Error(ok, err)
	}
	done()
}

// running runs a ledger; the returned function ends it and waits.
func running(t *testing.T, l *ledger.Ledger) func() {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	return func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// eventually fails the test if a condition does not come about.
func eventually(t testing.TB, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !met(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
