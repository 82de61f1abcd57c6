package sagas_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/stripegateway"
)

// BenchmarkReconcile compares paid bills with the stand-in, a process of its
// own, and reports how many a second, and how much more heap than before was
// alive after any collection meanwhile (MB-live-more) and in use (MB-heap-more,
// with what waits to be collected). Ten times the bills must not keep more alive:
// they are streamed.
//
//	go test ./sagas -run '^$' -bench Reconcile -benchtime 1x -timeout 30m
func BenchmarkReconcile(b *testing.B) {
	program := filepath.Join(b.TempDir(), "stripesim")
	if out, err := exec.CommandContext(b.Context(), "go", "build", "-o", program, "github.com/billonce/billonce/cmd/stripesim").CombinedOutput(); err != nil {
		b.Fatalf("build the stand-in: %v\n%s", err, out)
	}
	live := map[int]int64{}
	for _, bills := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("bills=%d", bills), func(b *testing.B) { live[bills] = benchReconcile(b, program, bills) })
	}
	few, many := live[10_000], live[100_000]
	if few == 0 || many == 0 {
		return // it was not asked for both
	}
	fmt.Printf("reconcile: live heap, beyond what was alive before: %.1f MB of 10,000 bills, %.1f MB of 100,000\n", float64(few)/1e6, float64(many)/1e6)
	if many > few+8e6 {
		b.Errorf("ten times the bills keep %.1f MB more alive", float64(many-few)/1e6)
	}
}

func benchReconcile(b *testing.B, program string, bills int) (live int64) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	pool := pgtest.Pool(b)
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), log)
	b.Cleanup(store.Close)
	api, control := standIn(b, program)
	paidBills(b, commands.NewDispatcher(store), control, bills)

	gateway, err := stripegateway.New(stripegateway.Config{BaseURL: api, Key: "sk_test_bench", Timeout: 30 * time.Second, Log: log})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(gateway.Close)
	d := commands.NewDispatcher(store) // one that remembers nothing
	inbox, err := sagas.NewInbox(sagas.InboxConfig{APIVersion: stripegateway.APIVersion, Poll: time.Second, Actor: "inbox", Count: func(string, string) {}, Resolve: func() {}}, d, log)
	if err != nil {
		b.Fatal(err)
	}
	reconciler, err := sagas.NewReconciler(sagas.ReconcilerConfig{Poll: time.Second, Actor: "reconciler"}, d, gateway, gateway, inbox, sagas.ControlClock(control+"/control/clock"), log)
	if err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	before := heapNow()
	most, stop := heapWatch()
	began := time.Now()
	b.ResetTimer()
	for range b.N {
		v, err := reconciler.Reconcile(b.Context(), sagas.Scope{Period: november})
		if err != nil || v.State != "done" || v.Bills != int64(bills) || v.Charges != int64(bills) || v.Repaired+v.Unrepaired != 0 {
			b.Fatalf("reconcile: %+v, %v", v, err)
		}
	}
	b.StopTimer()
	stop()
	live = max(most().live-before.live, 1)
	b.ReportMetric(float64(bills*b.N)/time.Since(began).Seconds(), "bills/s")
	b.ReportMetric(float64(live)/1e6, "MB-live-more")
	b.ReportMetric(float64(most().inUse-before.inUse)/1e6, "MB-heap-more")
	b.ReportMetric(float64(before.live)/1e6, "MB-live-before")
	return live
}

// standIn starts the stand-in as a process of its own, until the benchmark ends.
func standIn(b *testing.B, program string) (api, control string) {
	b.Helper()
	ports := filepath.Join(b.TempDir(), "ports.json")
	cmd := exec.CommandContext(b.Context(), program)
	cmd.Env = append(os.Environ(), "STRIPESIM_LISTEN=127.0.0.1:0", "STRIPESIM_CONTROL_LISTEN=127.0.0.1:0", "STRIPESIM_CLOCK=2026-11-15T12:00:00Z", "STRIPESIM_PORT_FILE="+ports)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var at struct{ API, Control string }
	for deadline := time.Now().Add(time.Minute); at.Control == ""; time.Sleep(10 * time.Millisecond) {
		content, _ := os.ReadFile(ports)
		if err := json.Unmarshal(content, &at); err != nil && time.Now().After(deadline) {
			b.Fatalf("the stand-in does not say where it is: %q, %v", content, err)
		}
	}
	return at.API, at.Control
}

// plantOver makes a charge at a stand-in in another process.
func plantOver(b *testing.B, control string, id domain.CustomerID, stripeCustomer string) (m sim.Movement) {
	body, err := json.Marshal(map[string]any{"customer": stripeCustomer, "amount": 5000, "currency": "usd", "metadata": markers(id, november), "with_intent": true})
	if err != nil {
		b.Fatal(err)
	}
	res, err := http.Post(control+"/control/charges", "application/json", bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&m); err != nil || m.Charge == "" {
		b.Fatalf("plant a charge: %s, %v", res.Status, err)
	}
	_, _ = io.Copy(io.Discard, res.Body) // so that the connection is kept
	return m
}

// heap is what of it was alive after the last collection, and what is in use.
type heap struct{ live, inUse int64 }

func heapNow() heap {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heap{int64(samples[0].Value.Uint64()), int64(m.HeapInuse)}
}

// heapWatch notes the most heap until it is stopped.
func heapWatch() (most func() heap, stop func()) {
	var peak heap
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			now := heapNow()
			peak = heap{max(peak.live, now.live), max(peak.inUse, now.inUse)}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return func() heap { return peak }, func() { close(done); <-ended }
}

// paidBills makes a month of bills that are paid, in all three books.
func paidBills(b *testing.B, d *commands.Dispatcher, control string, n int) {
	b.Helper()
	pool := d.Log().Pool()
	for from := 0; from < n; from += 500 {
		var requests []commands.Request
		var streams []domain.StreamID
		for i := from; i < min(from+500, n); i++ {
			id := domain.CustomerID(fmt.Sprintf("cust-%06d", i))
			m := plantOver(b, control, id, fmt.Sprintf("cus_%06d", i))
			streams = append(streams, id.Stream())
			requests = append(requests, commands.Of(commands.NewRegisterCustomer(id, fmt.Sprintf("cus_%06d", i), "pm_card_visa")),
				commands.Of(commands.NewChargeBilling(id, november, usd(5000))),
				commands.Of(commands.NewRecordChargeOutcome(id, november, 1, 0, domain.Outcome{Class: domain.Paid, ChargeID: m.Charge, IntentID: m.Intent, Money: usd(5000), Source: domain.SourceAnswer})))
		}
		err := pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
			unit, err := d.Begin(b.Context(), tx, streams, nil, nil)
			if err != nil {
				return err
			}
			_, err = unit.DispatchNew(b.Context(), eventstore.Meta{Actor: "bench"}, requests...)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	if _, err := pool.Exec(b.Context(), `
		INSERT INTO billing_records (customer_id, billing_period, partition, attempt, key, amount, currency, stripe_customer_id, payment_method, params, state, intent_id, last_position)
		SELECT r.payload->>'customer_id', r.payload->>'billing_period', r.partition, 1, r.payload->>'key', 5000, 'usd', r.payload->>'stripe_customer_id', 'pm_card_visa', '{}', 'succeeded',
			p.payload->>'intent_id', r.position
		FROM events r JOIN events p ON p.stream_id = r.stream_id AND p.event_type = 'customer.billed.v1' WHERE r.event_type = 'charge.requested.v1'`); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(b.Context(), `ANALYZE`); err != nil {
		b.Fatal(err)
	}
}
