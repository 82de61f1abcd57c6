package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/eventstore/pglocal"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// process is a billingd of its own: it can be killed and frozen.
type process struct {
	*replica
	cmd  *exec.Cmd
	logs string // the file of its log
	done chan struct{}
}

// The time limit of a call and the lease of the processes.
const (
	processTimeout = 2 * time.Second
	processLease   = 3 * time.Second
)

func (h *house) spawn(grace time.Duration, more ...string) *process {
	h.t.Helper()
	dir := h.t.TempDir()
	ports := filepath.Join(dir, "address")
	p := &process{replica: &replica{house: h}, logs: filepath.Join(dir, "log"), done: make(chan struct{})}
	out, err := os.Create(p.logs)
	if err != nil {
		h.t.Fatal(err)
	}
	defer out.Close()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), asService+"=1", "DATABASE_URL="+h.dsn, "STRIPE_API_BASE="+h.stripe.APIURL, "STRIPE_API_KEY=sk_test_house",
		"BILLING_LISTEN=127.0.0.1:0", "BILLING_PORT_FILE="+ports, "BILLING_CLOCK_URL="+h.stripe.ControlURL+"/control/clock", "BILLING_ENVIRONMENT=test",
		"BILLING_STRIPE_TIMEOUT="+processTimeout.String(), "BILLING_LEASE="+processLease.String(), "BILLING_POLL=100ms",
		"BILLING_SHUTDOWN_GRACE="+grace.String(), "BILLING_STRIPE_RATE=0", "BILLING_DB_POOL=8")
	p.cmd.Env = append(p.cmd.Env, more...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the exit status is in ProcessState
	}()
	h.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	awaitFor(h.t, time.Minute, "billingd listens", func() bool {
		address, err := os.ReadFile(ports)
		p.url = "http://" + strings.TrimPrefix(strings.TrimSpace(string(address)), "http://")
		return err == nil && len(address) > 0
	}, p.log)
	return p
}

func (p *process) log() string {
	text, err := os.ReadFile(p.logs)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// exited waits for the end of the process and gives its exit status.
func (p *process) exited(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("billingd has not ended after %s\n%s", within, p.log())
		return -1
	}
}

// paid waits until the service says that the bill is paid, by the one charge
// that Stripe has.
func (r *replica) paid(id string) {
	r.t.Helper()
	var a answer
	var err error
	awaitFor(r.t, 90*time.Second, id+" is paid", func() bool {
		a, err = r.post(r.t.Context(), "/v1/commands/charge-billing?wait=5s", chargeBody(id))
		return err == nil && a.Bill.Status == "paid"
	}, func() string { return fmt.Sprintf("%+v %v", a, err) })
	if charges := r.charges(id); len(charges) != 1 || charges[0] != a.Bill.ChargeID {
		r.t.Errorf("%s: charges %v, the answer names %s", id, charges, a.Bill.ChargeID)
	}
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND payload->>'customer_id' = $1`, id); n != 1 {
		r.t.Errorf("%s has %d billed facts", id, n)
	}
}

const confirms = "/v1/payment_intents/*/confirm"

func (h *house) fault(f sim.Fault) {
	h.t.Helper()
	if _, err := h.stripe.AddFault(f); err != nil {
		h.t.Fatal(err)
	}
}

// begin sends the charge command and does not wait for the money.
func (r *replica) begin(id string) {
	r.t.Helper()
	if a, err := r.post(r.t.Context(), "/v1/commands/charge-billing", chargeBody(id)); err != nil || a.Status != http.StatusAccepted && a.Status != http.StatusOK {
		r.t.Fatalf("charge: %+v, %v", a, err)
	}
}

// TestC052_SIGTERMInMidCharge ends a service by SIGTERM while Stripe works, and
// starts another one at the same moment. With grace enough the charge is
// recorded before the end; without, the other one finds it. Both ends are in
// order.
func TestC052_SIGTERMInMidCharge(t *testing.T) {
	for name, grace := range map[string]time.Duration{"enough grace": 20 * time.Second, "too little grace": time.Second} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirms}, Kind: sim.DelayAfterCommit, Delay: processTimeout * 3 / 4})
			p := h.spawn(grace)
			p.register("acme")
			p.begin("acme")
			await(t, "the confirm is at Stripe", func() bool { return len(h.charges("acme")) == 1 })
			p.signal(syscall.SIGTERM)
			next := h.start(nil)
			if code := p.exited(grace + 30*time.Second); code != 0 {
				t.Errorf("exit status %d\n%s", code, p.log())
			}
			if _, err := p.post(t.Context(), "/v1/commands/charge-billing", chargeBody("acme")); err == nil {
				t.Error("a service that has ended still answers")
			}
			next.paid("acme")
		})
	}
}

// TestC052_RollingRestart ends three services one after the other, each while
// calls of its own that take eight seconds are at Stripe, and starts its successor
// at that moment: with a grace that is long enough for the answers, and with one
// that is not. Nobody takes new work after the signal, all end in order and
// within their grace, and every bill is charged once.
func TestC052_RollingRestart(t *testing.T) {
	for name, grace := range map[string]time.Duration{"enough grace": 30 * time.Second, "too little grace": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirms}, Kind: sim.DelayAfterCommit, Delay: 8 * time.Second, Times: 9})
			patient := []string{"BILLING_STRIPE_TIMEOUT=10s", "BILLING_LEASE=12s"}
			var ids []string
			p := h.spawn(grace, patient...)
			for turn := range 3 {
				mine := []string{fmt.Sprint("a", turn), fmt.Sprint("b", turn), fmt.Sprint("c", turn)}
				for _, id := range mine {
					p.register(id)
					p.begin(id)
				}
				ids = append(ids, mine...)
				await(t, "calls are at Stripe", func() bool {
					for _, id := range mine {
						if len(h.charges(id)) != 1 {
							return false
						}
					}
					return true
				})
				p.signal(syscall.SIGTERM)
				signalled := time.Now()
				next := h.spawn(grace, patient...)
				if _, err := p.post(t.Context(), "/v1/commands/charge-billing", chargeBody(mine[0])); err == nil {
					t.Error("a service that was told to end a while ago takes new work")
				}
				if code := p.exited(grace + 5*time.Second); code != 0 {
					t.Errorf("exit status %d\n%s", code, p.log())
				}
				if took := time.Since(signalled); took > grace+2*time.Second {
					t.Errorf("it took %s to end, with a grace of %s", took, grace)
				}
				p = next
			}
			for _, id := range ids {
				p.paid(id)
			}
			p.signal(syscall.SIGTERM)
			if code := p.exited(time.Minute); code != 0 {
				t.Errorf("exit status %d\n%s", code, p.log())
			}
		})
	}
}

// TestKillNineInMidCharge kills a service while Stripe works; the next one
// finds the charge without an operator.
func TestKillNineInMidCharge(t *testing.T) {
	h := newHouse(t)
	h.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirms}, Kind: sim.DelayAfterCommit, Delay: processTimeout * 3 / 4})
	p := h.spawn(time.Second)
	p.register("acme")
	p.begin("acme")
	await(t, "the confirm is at Stripe", func() bool { return len(h.charges("acme")) == 1 })
	p.signal(syscall.SIGKILL)
	p.exited(30 * time.Second)
	h.start(nil).paid("acme")
}

// TestC011_PausedWorkerOutlivesItsClaim freezes a service by SIGSTOP while a
// call of it is at Stripe, for longer than its lease, and lets it go on when
// another has taken the bill over. One charge, one fact; what it still wants to
// write is refused, and it says so.
func TestC011_PausedWorkerOutlivesItsClaim(t *testing.T) {
	for call, path := range map[string]string{"create": "/v1/payment_intents", "confirm": confirms} {
		t.Run(call, func(t *testing.T) {
			h := newHouse(t)
			h.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: path}, Kind: sim.DelayAfterCommit, Delay: processTimeout / 2})
			p := h.spawn(time.Second)
			p.register("acme")
			p.begin("acme")
			await(t, "the call is at Stripe", func() bool {
				c := h.stripe.Counters()
				return call == "create" && c.Creates == 1 || len(h.charges("acme")) == 1
			})
			p.signal(syscall.SIGSTOP)
			other := h.start(nil)
			other.paid("acme")
			moved := h.count(`SELECT coalesce(sum(position), 0) FROM processor_tokens`)
			facts := h.count(`SELECT count(*) FROM events`)
			p.signal(syscall.SIGCONT)
			if call == "create" {
				awaitFor(t, time.Minute, "the woken service says that its write was refused", func() bool {
					return strings.Contains(p.log(), "a write was refused: another claim has the bill")
				}, p.log)
			}
			p.signal(syscall.SIGTERM)
			if code := p.exited(time.Minute); code != 0 {
				t.Errorf("exit status %d\n%s", code, p.log())
			}
			if now := h.count(`SELECT coalesce(sum(position), 0) FROM processor_tokens`); now < moved {
				t.Errorf("tokens went back from %d to %d", moved, now)
			}
			if now := h.count(`SELECT count(*) FROM events`); now != facts {
				t.Errorf("%d facts came after the end", now-facts)
			}
			other.paid("acme")
		})
	}
}

// TestC109_PoolSmallerThanTheCrowd gives the service two connections and fifty
// callers at once: nobody waits for a second connection while holding one, and
// none is held while Stripe works.
func TestC109_PoolSmallerThanTheCrowd(t *testing.T) {
	h := newHouse(t)
	h.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirms}, Kind: sim.DelayAfterCommit, Delay: processTimeout / 4, Times: -1})
	r := h.start(func(s *config.Config) { s.DBPool, s.Concurrency = 2, 50 })
	const crowd = 50
	for i := range crowd {
		r.register(fmt.Sprint("c", i))
	}
	var callers sync.WaitGroup
	for i := range crowd {
		callers.Go(func() {
			for {
				a, err := r.post(t.Context(), "/v1/commands/charge-billing?wait=5s", chargeBody(fmt.Sprint("c", i)))
				if err != nil {
					t.Errorf("c%d: %v", i, err)
					return
				}
				if a.Bill.Status == "paid" {
					return
				}
				if a.Status >= 400 && a.Status != http.StatusServiceUnavailable && a.Status != http.StatusTooManyRequests {
					t.Errorf("c%d: %+v", i, a)
					return
				}
			}
		})
	}
	await(t, "calls are at Stripe and no transaction is open", func() bool {
		return h.stripe.Counters().Confirms > 0 && h.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'billingd' AND state = 'idle in transaction'`) == 0
	})
	callers.Wait()
	for i := range crowd {
		if charges := h.charges(fmt.Sprint("c", i)); len(charges) != 1 {
			t.Errorf("c%d: charges %v", i, charges)
		}
	}
	if n := h.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'billingd'`); n > 3 {
		t.Errorf("%d connections", n) // the pool's, and the listener's
	}
}

// TestC111_NetworkCut cuts, holds up and loses parts of the links of two services
// to the database in the middle of a batch: of one, of the other, of both. They
// recover by themselves, every bill is charged once, and no processor's token is
// ahead of what it has done.
func TestC111_NetworkCut(t *testing.T) {
	h := newHouse(t)
	links := []*pgtest.Proxy{pgtest.NewProxy(t, h.dsn), pgtest.NewProxy(t, h.dsn)}
	var replicas []*replica
	for _, link := range links {
		replicas = append(replicas, h.start(func(s *config.Config) { s.DatabaseURL = settings.NewSecret(link.DSN()) }))
	}
	const customers = 50
	for i := range customers {
		replicas[0].register(fmt.Sprint("c", i))
	}
	away := func(links ...*pgtest.Proxy) {
		for _, link := range links {
			link.CutAll()
			link.Pause()
		}
		time.Sleep(2 * time.Second) // longer than a claim's calls take
		for _, link := range links {
			link.Resume()
		}
	}
	random := rand.New(rand.NewPCG(111, 1))
	for part, trouble := range []func(){
		func() { away(links[0]) },
		func() { away(links[1]) },
		func() { away(links...) },
		func() { // three packets of ten come late, or never
			for range 40 {
				for _, link := range links {
					if random.IntN(10) < 3 {
						link.Pause()
					}
					if random.IntN(40) == 0 {
						link.CutAll()
					}
				}
				time.Sleep(50 * time.Millisecond)
				links[0].Resume()
				links[1].Resume()
			}
		},
		func() {},
	} {
		for i := range customers {
			if i%5 == part { // whoever is told to come again comes again
				await(t, "the command is taken", func() bool {
					a, err := replicas[i%2].post(t.Context(), "/v1/commands/charge-billing", chargeBody(fmt.Sprint("c", i)))
					return err == nil && a.Status < 300
				})
			}
		}
		trouble()
	}
	for i := range customers {
		replicas[i%2].paid(fmt.Sprint("c", i))
	}
	if n := h.count(`SELECT count(*) FROM dead_letters`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	if rows, requested := h.count(`SELECT count(*) FROM billing_records`), h.count(`SELECT count(*) FROM events WHERE event_type = 'charge.requested.v1'`); rows != customers || requested != customers {
		t.Errorf("%d rows for %d requested charges, want %d", rows, requested, customers)
	}
}

// TestDatabaseRestart stops PostgreSQL in the middle of a batch and starts it
// again: the service goes on by itself, says meanwhile why it is not ready, and
// every bill is charged once.
func TestDatabaseRestart(t *testing.T) {
	h := newHouse(t)
	dir := t.TempDir()
	options := pglocal.Options{DataDir: dir, Volatile: true}
	server, err := pglocal.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(server.Stop(context.Background()), pglocal.Remove(context.Background(), dir)); err != nil {
			t.Errorf("remove PostgreSQL: %v", err)
		}
	})
	if h.dsn, err = server.EnsureDatabase(t.Context(), "restarted"); err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(h.dsn)
	if err != nil {
		t.Fatal(err)
	}
	if options.Port, err = strconv.Atoi(at.Port()); err != nil {
		t.Fatal(err)
	}
	r := h.start(nil)
	const customers = 20
	for i := range customers {
		r.register(fmt.Sprint("c", i))
	}
	for i := range customers {
		r.begin(fmt.Sprint("c", i))
	}
	await(t, "the batch is under way", func() bool { return h.stripe.Counters().Confirms > 2 })
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitFor(t, time.Minute, "not ready", func() bool {
		status, text := r.ask(http.MethodGet, "/readyz", "")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "the database does not answer")
	})
	if server, err = pglocal.Start(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	if dsn := server.DSN("restarted"); dsn != h.dsn {
		t.Fatalf("the server listens elsewhere than before: another program took its port")
	}
	for i := range customers {
		r.paid(fmt.Sprint("c", i))
	}
}
