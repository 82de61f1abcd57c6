package sagas_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/sagas"
)

// asStripe makes a test binary be a stand-in with so many succeeded intents, so
// that what Stripe does is not counted as ours.
const asStripe = "STRIPE_OF_A_BENCHMARK"

// stripeElsewhere is where the stand-in listens.
type stripeElsewhere struct{ API, Control string }

// beStripe plants, tells its addresses, and lives as long as its standard input.
func beStripe(planted string) {
	stripe, err := sim.Start(sim.Options{Clock: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC), RequestLog: -1})
	if err != nil {
		panic(err)
	}
	var n int
	if _, err := fmt.Sscan(planted, &n); err != nil {
		panic(err)
	}
	for i := range n {
		id := domain.CustomerID(fmt.Sprintf("planted-%06d", i))
		if _, err := stripe.PlantCharge(sim.Plant{Customer: "cus_" + strings.ReplaceAll(string(id), "-", ""), Amount: 5000, Currency: "usd",
			Metadata: markers(id, november), WithIntent: true, Silent: true}); err != nil {
			panic(err)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(stripeElsewhere{stripe.APIURL, stripe.ControlURL}); err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = stripe.Close()
}

// lookRig is a rig whose stand-in is another process, with so many intents of
// bills that the database knows.
func lookRig(b *testing.B, planted int) *rig {
	b.Helper()
	stripe := exec.Command(os.Args[0])
	stripe.Env, stripe.Stderr = append(os.Environ(), fmt.Sprintf("%s=%d", asStripe, planted)), os.Stderr
	said, err := stripe.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	life, err := stripe.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := stripe.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = life.Close()
		_ = stripe.Wait()
	})
	var at stripeElsewhere
	if err := json.NewDecoder(said).Decode(&at); err != nil {
		b.Fatalf("the stand-in does not start: %v", err)
	}
	r := rigOn(b, pgtest.Pool(b))
	_ = r.stripe.Close()
	r.stripe = &sim.Server{APIURL: at.API, ControlURL: at.Control} // only its addresses are known here
	r.know(planted)
	return r
}

// know gives the database the rows of what was planted.
func (r *rig) know(planted int) {
	r.t.Helper()
	var ledger struct {
		Movements []sim.Movement `json:"movements"`
	}
	r.control(http.MethodGet, "/control/ledger", "", &ledger)
	if len(ledger.Movements) != planted {
		r.t.Fatalf("%d movements in the ledger, want %d", len(ledger.Movements), planted)
	}
	var customers, intents, charges []string
	for _, m := range ledger.Movements {
		customers, intents, charges = append(customers, m.Metadata["customer_id"]), append(intents, m.Intent), append(charges, m.Charge)
	}
	if _, err := r.pool.Exec(r.t.Context(), `
		INSERT INTO billing_records (customer_id, billing_period, partition, attempt, key, amount, currency, stripe_customer_id, payment_method, params, state, intent_id, outcome, last_position)
		SELECT customer, $1, 0, 1, customer, 5000, 'usd', 'cus', 'pm_card_visa', '{}', 'succeeded', intent, json_build_object('charge_id', charge), 0
		FROM unnest($2::text[], $3::text[], $4::text[]) AS u(customer, intent, charge)`, november.String(), customers, intents, charges); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.pool.Exec(r.t.Context(), `ANALYZE`); err != nil {
		r.t.Fatal(err)
	}
}

// control asks the stand-in's control listener.
func (r *rig) control(method, path, body string, into any) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(r.t.Context()), method, r.stripe.ControlURL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil || res.StatusCode != http.StatusOK {
		r.t.Fatalf("%s %s: %s %v", method, path, res.Status, err)
	}
}

// lookless shows the look an empty Stripe: a run without it.
type lookless struct{ sagas.Gateway }

func (lookless) List(context.Context, sagas.Listing) (sagas.Page, error) { return sagas.Page{}, nil }

// BenchmarkLook measures what the look costs, at a Stripe, in a process of its
// own, that holds 100,000 intents of ours and as many charges.
//
// look_sweep is the start sweep over all of them, beside reading the same pages
// and throwing them away. look_run is the speed of runs during which the look
// goes on, beside runs without it, in turns. look_share is the processor time,
// of this process and of PostgreSQL, for looking at what a run made, as a part
// of that for the run.
func BenchmarkLook(b *testing.B) {
	const planted, bills, turns = 100_000, 3500, 3
	defer debug.SetGCPercent(debug.SetGCPercent(300)) // as the service runs
	r := lookRig(b, planted)
	without := func(g sagas.Gateway) sagas.Gateway { return lookless{g} }
	var sweeps, floors, seen, unseen, shares []float64
	for b.Loop() {
		r.forgetLooks()
		_, took := r.look(nil)
		sweeps, floors = append(sweeps, 2*planted/took.Seconds()), append(floors, 2*planted/r.leafThrough(2*planted).Seconds())
		for range turns {
			took, run := r.billed(fmt.Sprint("unseen-", len(unseen)), bills, without)
			start, _ := r.look(without)
			look, _ := r.look(nil) // at what that run made
			unseen, shares = append(unseen, bills/took.Seconds()), append(shares, (look-start).Seconds()/run.Seconds())
			took, _ = r.billed(fmt.Sprint("seen-", len(seen)), bills, nil)
			seen = append(seen, bills/took.Seconds())
		}
	}
	b.ReportMetric(0, "ns/op")
	fmt.Printf("\nbench: look_sweep %.0f objects/s ratio=%.2f\n", median(sweeps), median(sweeps)/median(floors))
	fmt.Printf("bench: look_run %.0f bills/s ratio=%.3f\n", median(seen), median(seen)/median(unseen))
	fmt.Printf("bench: look_share %.2f %%-of-processor-time ratio=%.4f\n", 100*median(shares), median(shares))
}

func median(xs []float64) float64 {
	sorted := slices.Sorted(slices.Values(xs))
	return sorted[len(sorted)/2]
}

func (r *rig) forgetLooks() {
	r.t.Helper()
	if _, err := r.pool.Exec(context.WithoutCancel(r.t.Context()), `DELETE FROM looks`); err != nil {
		r.t.Fatal(err)
	}
}

// look starts a service, and stops it once its look is complete.
func (r *rig) look(gateway func(sagas.Gateway) sagas.Gateway) (processor, took time.Duration) {
	r.t.Helper()
	before := r.processorTime()
	s := r.start(options{gateway: gateway})
	r.within(5*time.Minute, "the look is complete", s.collector.Look().Completed)
	took = s.collector.Look().Spent()
	s.stop()
	if n := s.collector.Look().Adopted(); n != 0 {
		r.t.Fatalf("%d objects were adopted: the log knew them all", n)
	}
	return r.processorTime() - before, took
}

// billed bills so many customers, and measures from when the look is complete.
// What was made before is out of the next look's hour of overlap.
func (r *rig) billed(prefix string, bills int, gateway func(sagas.Gateway) sagas.Gateway) (took, processor time.Duration) {
	r.t.Helper()
	ids := make([]domain.CustomerID, bills)
	for i := range ids {
		ids[i] = domain.CustomerID(fmt.Sprintf("%s-%05d", prefix, i))
	}
	s := r.start(options{noCollector: true})
	var callers sync.WaitGroup
	for part := range slices.Chunk(ids, bills/10) {
		callers.Go(func() { s.owe(part...) })
	}
	callers.Wait()
	in := func(state string) bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = $1 AND starts_with(customer_id, $2)`, state, prefix) == bills
	}
	r.within(5*time.Minute, "all are reserved", func() bool { return in("reserved") })
	s.stop()
	r.control(http.MethodPost, "/control/clock", `{"advance":"2h"}`, &struct{}{})
	began, before := time.Now(), r.processorTime()
	s = r.start(options{concurrency: 32, gateway: gateway})
	for !in("succeeded") {
		if time.Since(began) > 5*time.Minute {
			r.t.Fatalf("not all are charged\n%s", r.describe())
		}
		time.Sleep(20 * time.Millisecond)
	}
	took = time.Since(began)
	r.within(5*time.Minute, "its facts are handled", s.caughtUp)
	processor = r.processorTime() - before
	s.stop()
	return took, processor
}

// leafThrough reads both lists to their ends and throws them away.
func (r *rig) leafThrough(objects int) time.Duration {
	r.t.Helper()
	began, seen := time.Now(), 0
	for _, resource := range []string{"charges", "payment_intents"} {
		for after, more := "", true; more; {
			req, err := http.NewRequestWithContext(context.WithoutCancel(r.t.Context()), http.MethodGet, r.stripe.APIURL+"/v1/"+resource+"?limit=100"+after, nil)
			if err != nil {
				r.t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer sk_test_rig")
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				r.t.Fatal(err)
			}
			page, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil {
				r.t.Fatal(err)
			}
			last := strings.LastIndex(string(page), `{"id":"`)
			if last < 0 {
				r.t.Fatalf("no page: %.200s", page)
			}
			id, _, _ := strings.Cut(string(page[last+7:]), `"`)
			seen, after, more = seen+100, "&starting_after="+id, strings.Contains(string(page), `"has_more":true`)
		}
	}
	if seen < objects {
		r.t.Fatalf("%d objects were read, want %d", seen, objects)
	}
	return time.Since(began)
}

// processorTime is what this process and PostgreSQL have used.
func (r *rig) processorTime() time.Duration {
	r.t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		r.t.Fatal(err)
	}
	server := r.count(`SELECT pg_backend_pid()`)
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		r.t.Fatal(err)
	}
	type process struct{ parent, ticks, ofEnded int }
	all := map[int]process{}
	for _, file := range stats {
		text, err := os.ReadFile(file)
		_, rest, found := strings.Cut(string(text), ") ") // behind the name: proc_pid_stat(5)
		if err != nil || !found {
			continue // it has ended
		}
		var f [15]int
		for i, field := range strings.Fields(rest)[1:15] {
			f[i+1], _ = strconv.Atoi(field)
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		all[pid] = process{f[1], f[11] + f[12], f[13] + f[14]}
	}
	postmaster := all[server].parent
	ticks := all[postmaster].ticks + all[postmaster].ofEnded
	for _, p := range all {
		if p.parent == postmaster && postmaster > 1 {
			ticks += p.ticks
		}
	}
	return time.Duration(used.Utime.Nano()+used.Stime.Nano()) + time.Duration(ticks)*time.Second/100
}
