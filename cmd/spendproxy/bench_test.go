package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// What the test binary is in a benchmark, so that each part is a process of its
// own, as in production.
const (
	beStripe = "SPENDPROXY_TEST_STRIPE"
	beBare   = "SPENDPROXY_TEST_BARE" // the least that a proxy does; its value is the upstream
)

// benchPart runs the part that the environment names, as long as its standard
// input is open.
func benchPart() (ran bool) {
	var at string
	switch {
	case os.Getenv(beStripe) != "":
		s, err := sim.Start(sim.Options{APIKeys: []string{stripeKey}, RequestLog: -1})
		if err != nil {
			panic(err)
		}
		defer s.Close()
		at = s.APIURL
	case os.Getenv(beBare) != "":
		base, err := url.Parse(os.Getenv(beBare))
		if err != nil {
			panic(err)
		}
		bare := &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(base)
				r.Out.Header.Set("Authorization", "Bearer "+stripeKey)
			},
			Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
		}
		s := httptest.NewServer(bare)
		defer s.Close()
		at = s.URL
	default:
		return false
	}
	if err := json.NewEncoder(os.Stdout).Encode(at); err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

// startPart starts the test binary as a part and returns its address.
func startPart(b *testing.B, env string) (at string) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), env), os.Stderr
	said, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	life, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = life.Close()
		_ = cmd.Wait()
	})
	if err := json.NewDecoder(said).Decode(&at); err != nil {
		b.Fatalf("%s does not start: %v", env, err)
	}
	return at
}

// startProxy starts spendproxy itself.
func startProxy(b *testing.B, upstream, dsn string) (at string) {
	b.Helper()
	ports := filepath.Join(b.TempDir(), "ports.json")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SPENDPROXY_TEST_MAIN=1", "SPENDPROXY_LISTEN=127.0.0.1:0", "SPENDPROXY_PORT_FILE="+ports, "SPENDPROXY_LOG_LEVEL=warn",
		"SPENDPROXY_UPSTREAM="+upstream, "SPENDPROXY_STRIPE_KEY="+stripeKey, "SPENDPROXY_DATABASE_URL="+dsn, "SPENDPROXY_ADMIN_TOKEN="+adminToken)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	var file struct{ API string }
	eventually(b, "the proxy listens", func() bool {
		content, err := os.ReadFile(ports)
		return err == nil && json.Unmarshal(content, &file) == nil
	})
	return file.API
}

// The benchmark's size.
const (
	benchCallers = 32
	benchTurns   = 5
	benchCalls   = 2000 // of a kind in a turn
)

// timed lets the callers make so many calls, and tells the rate and the median
// latency.
func timed(b *testing.B, call func(n int) error) (perSecond float64, p50 time.Duration) {
	b.Helper()
	took := make([]time.Duration, benchCalls)
	var next atomic.Int64
	var running sync.WaitGroup
	begun := time.Now()
	for range benchCallers {
		running.Go(func() {
			for n := int(next.Add(1)) - 1; n < benchCalls; n = int(next.Add(1)) - 1 {
				at := time.Now()
				if err := call(n); err != nil {
					b.Error(err)
					return
				}
				took[n] = time.Since(at)
			}
		})
	}
	running.Wait()
	all := time.Since(begun)
	slices.Sort(took)
	return benchCalls / all.Seconds(), took[benchCalls/2]
}

// BenchmarkProxy puts the proxy beside the least that a proxy does, in front of
// the same stand-in, with its durable PostgreSQL, and its two commits a money
// call beside two single-row commits. All of it shares the machine's processors,
// in turns.
func BenchmarkProxy(b *testing.B) {
	stripe := startPart(b, beStripe+"=1")
	bare := startPart(b, beBare+"="+stripe)
	dsn := pgtest.Empty(b)
	proxied := startProxy(b, stripe, dsn)
	pool := pgtest.Connect(b, dsn, benchCallers)
	if _, err := pool.Exec(b.Context(), `CREATE TABLE floor (id text PRIMARY KEY, data text NOT NULL)`); err != nil {
		b.Fatal(err)
	}
	// Keys are issued by a ledger beside the proxy's own.
	r := &rig{t: b, app: &App{ledger: ledger.New(pool, ledger.Options{Log: slog.New(slog.DiscardHandler)})}}
	vault := r.free(1 << 50)

	var money, bareMoney, floor, reads, bareReads, moneyP50, bareP50, floorP50 []float64
	turn := func(round int, keep bool) {
		confirms := func(base, secret, name string) (float64, time.Duration) {
			ids := make([]string, benchCalls)
			timed(b, func(n int) (err error) {
				ids[n], err = r.intent(base, secret, fmt.Sprintf("%s-%d-%d-intent", name, round, n))
				return err
			})
			rate, p50 := timed(b, func(n int) error {
				a := r.postAt(base, secret, "/v1/payment_intents/"+ids[n]+"/confirm", fmt.Sprintf("%s-%d-%d", name, round, n), offSession)
				return a.good("succeeded")
			})
			return rate, p50
		}
		read := func(base, secret string) float64 {
			id, err := r.intent(base, secret, fmt.Sprintf("read-%s-%d", secret[:2], round))
			if err != nil {
				b.Fatal(err)
			}
			rate, _ := timed(b, func(int) error {
				at := &rig{t: b, url: base}
				a := at.get(secret, "/v1/payment_intents/"+id)
				return a.good("requires_payment_method")
			})
			return rate
		}
		f, fp := timed(b, func(n int) error { return twoCommits(b.Context(), pool, round, n) })
		bm, bp := confirms(bare, "sk_unused", "bare")
		m, mp := confirms(proxied, vault, "vault")
		br, rd := read(bare, "sk_unused"), read(proxied, vault)
		if !keep || b.Failed() {
			return
		}
		floor, floorP50 = append(floor, f), append(floorP50, millis(fp))
		bareMoney, bareP50 = append(bareMoney, bm), append(bareP50, millis(bp))
		money, moneyP50 = append(money, m), append(moneyP50, millis(mp))
		bareReads, reads = append(bareReads, br), append(reads, rd)
	}
	turn(-1, false)
	for b.Loop() {
		for round := range benchTurns {
			turn(round, true)
		}
	}
	if b.Failed() {
		b.FailNow()
	}
	added := median(moneyP50) - median(bareP50)
	b.ReportMetric(0, "ns/op")
	fmt.Printf("bench: proxy_two_commits_floor %.0f calls/s ratio=1.00\n", median(floor))
	fmt.Printf("bench: proxy_bare_confirms %.0f calls/s ratio=%.2f\n", median(bareMoney), median(bareMoney)/median(floor))
	fmt.Printf("bench: proxy_confirms %.0f calls/s ratio=%.2f\n", median(money), median(money)/median(floor))
	fmt.Printf("bench: proxy_confirm_added_p50 %.2f ms ratio=%.2f\n", added, added/median(floorP50))
	fmt.Printf("bench: proxy_reads %.0f calls/s ratio=%.2f\n", median(reads), median(reads)/median(bareReads))
}

// twoCommits is the least that a reservation and a booking cost.
func twoCommits(ctx context.Context, pool *pgxpool.Pool, round, n int) error {
	for _, of := range []string{"before", "after"} {
		if _, err := pool.Exec(ctx, `INSERT INTO floor VALUES ($1, 'some text of a row')`, fmt.Sprintf("%s-%d-%d", of, round, n)); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) intent(base, secret, key string) (id string, err error) {
	a := r.postAt(base, secret, "/v1/payment_intents", key, url.Values{"amount": {"2900"}, "currency": {"usd"}, "customer": {"cus_free"}, "payment_method_types[0]": {"card"}})
	return a.ID, a.good("requires_payment_method")
}

// good is an error unless the answer shows an object in such a state.
func (a answer) good(status string) error {
	if a.err != nil || a.status != http.StatusOK || a.Status != status {
		return fmt.Errorf("%d %q %v %.200s", a.status, a.Status, a.err, a.body)
	}
	return nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func median(xs []float64) float64 {
	sorted := slices.Sorted(slices.Values(xs))
	return sorted[len(sorted)/2]
}
