package demo

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// Target is how many bills a second a month should be charged at on two cores,
// everything included.
const Target = 500

// Bench measures the charging phase of so many months, nothing killed and the
// stand-in answering at once, and before each one the floor: the same two calls
// to the same stand-in for as many bills, as many at once, from this process,
// with nothing else done. It prints, as its last lines,
//
//	bench: demo_month_floor VALUE bills/s ratio=1.00
//	bench: demo_month VALUE bills/s ratio=R
//
// (demo_month_direct where billingd calls the stand-in itself) with the medians, where R is the month's part of the floor. A bill's rate is
// taken from the first charge of the month to the last, by the stand-in's
// clock: declaring dues, the saga, pre-flight, the money path and the read
// models all run within. It returns ErrWrong if a month was not billed right.
func Bench(ctx context.Context, o Options, months int) error {
	o.NoKill = true
	d := &demo{Options: o}
	return d.hosted(ctx, func(ctx context.Context) error { return d.bench(ctx, months) })
}

func (d *demo) bench(ctx context.Context, months int) error {
	d.say("%s of %s, measured\n", plural(months, "billing month", "billing months"), plural(len(d.Customers), "customer", "customers"))
	if err := d.setUp(ctx); err != nil {
		return err
	}
	if d.AnswerLate > 0 {
		if err := d.stand.SlowDown(ctx, d.AnswerLate, "/v1/payment_intents", "/v1/payment_intents/*/confirm"); err != nil {
			return err
		}
		d.say("  Each call is answered %s late, %d bills are in flight: at most %.0f bills/s.", d.AnswerLate, d.InFlight, float64(d.InFlight)/(2*d.AnswerLate.Seconds()))
	}
	var floors, rates []float64
	for n := range months {
		floor, err := d.floor(ctx, n)
		if err != nil {
			return err
		}
		rate, err := d.month(ctx, clockDue.AddDate(0, n, 0), floor)
		if err != nil {
			return err
		}
		floors, rates = append(floors, floor), append(rates, rate)
	}
	if err := d.stop(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	floor, rate := median(floors), median(rates)
	d.say("\n  A month is charged at %.0f bills/s, where %d are aimed at; the same calls alone reach %.0f.", rate, Target, floor)
	d.say("bench: demo_month_floor %.0f bills/s ratio=1.00", floor)
	d.say("bench: %s %.0f bills/s ratio=%.2f", map[bool]string{true: "demo_month_direct", false: "demo_month"}[d.Direct], rate, rate/floor)
	return nil
}

// month lets one month fall due and measures it.
func (d *demo) month(ctx context.Context, due time.Time, floor float64) (rate float64, err error) {
	d.period = periodOf(due)
	before, err := parts.ReadMetrics(ctx, d.api)
	if err != nil {
		return 0, err
	}
	var walBefore, walAfter int64
	if err := d.query(ctx, walWritten, &walBefore); err != nil {
		return 0, err
	}
	earlier, err := d.stand.Ledger(ctx, "")
	if err != nil {
		return 0, err
	}
	d.ledger = newLedgerReader(d.stand, earlier)
	if err := d.stand.SetClock(ctx, due); err != nil {
		return 0, err
	}
	end := d.showProgress("  charging " + d.period)
	memory := d.watchMemory(ctx)
	err = d.until(ctx, len(d.Customers))
	most := memory()
	end()
	if err != nil {
		return 0, fmt.Errorf("charge %s: %w", d.period, err)
	}
	books, err := readBooks(ctx, d.service, d.period, len(d.Customers), d.Patience)
	if err != nil {
		return 0, err
	}
	after, err := parts.ReadMetrics(ctx, d.api)
	if err != nil {
		return 0, err
	}
	if err := d.query(ctx, walWritten, &walAfter); err != nil {
		return 0, err
	}
	movements := ofPeriod(d.ledger.movements[len(earlier):], d.period)
	a := newAudit(d.Customers, movements)
	a.findings = append(a.findings, books.compare(a, movements)...)
	if !a.right() {
		d.say("")
		return 0, d.verdict(a, "")
	}
	charges, took := span(movements)
	rate = perSecond(charges, took)
	d.say("  %s: %s in %s, %.0f bills/s; floor %.0f bills/s", d.period, plural(charges, "charge", "charges"), seconds(took), rate, floor)
	c := costBetween(before, after)
	d.say("           commits a bill: %s", c.commits())
	d.say("           a bill: %.1f round trips to the database, %.1f KiB of WAL with everything on; billingd: %.0f MB resident before, %.0f at most",
		c.trips/max(c.bills, 1), float64(walAfter-walBefore)/1024/float64(max(charges, 1)), before[resident]/1e6, most/1e6)
	return rate, nil
}

// walWritten is how many bytes of WAL the server has written: those of the log,
// the rows, the read models and the proxy's books.
const walWritten = `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`

// watchMemory looks at the service's memory until the function that it returns is
// called, which says how much it was at most, in bytes.
func (d *demo) watchMemory(ctx context.Context) (most func() float64) {
	ctx, stop := context.WithCancel(ctx)
	seen := make(chan float64, 1)
	go func() {
		var bytes float64
		for ctx.Err() == nil {
			bytes = max(bytes, d.residentNow(ctx))
			_ = parts.Pause(ctx, memoryEvery)
		}
		seen <- bytes
	}()
	return func() float64 { stop(); return <-seen }
}

// memoryEvery is how often memory is looked at.
const memoryEvery = time.Second

// residentNow is what the service's process takes of memory, in bytes: as the
// system tells it, which costs the service nothing, or else its metrics.
func (d *demo) residentNow(ctx context.Context) float64 {
	if bytes, ok := d.billingd.Resident(); ok {
		return float64(bytes)
	}
	now, _ := parts.ReadMetrics(ctx, d.api)
	return now[resident]
}

// floor measures creating and confirming as many intents as there are
// customers, as many at once as the service has in flight, with keys.
func (d *demo) floor(ctx context.Context, round int) (billsPerSecond float64, err error) {
	caller := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: d.InFlight, MaxConnsPerHost: d.InFlight}, Timeout: 10 * time.Second}
	defer caller.CloseIdleConnections()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	bills := make(chan int)
	var callers sync.WaitGroup
	begun := time.Now()
	for range d.InFlight {
		callers.Go(func() {
			for n := range bills {
				if err := d.rawBill(ctx, caller, d.Customers[n], fmt.Sprintf("floor-%d-%d", round, n)); err != nil {
					cancel(fmt.Errorf("measure the floor: %w", err))
				}
			}
		})
	}
	for n := range d.Customers {
		if ctx.Err() != nil {
			break
		}
		bills <- n
	}
	close(bills)
	callers.Wait()
	return float64(len(d.Customers)) / time.Since(begun).Seconds(), context.Cause(ctx)
}

// rawBill makes the two calls of a bill, for a customer that nobody owes for.
func (d *demo) rawBill(ctx context.Context, caller *http.Client, c Customer, key string) error {
	intent, err := d.rawCall(ctx, caller, "/v1/payment_intents", key+"-intent", url.Values{
		"amount": {strconv.FormatInt(c.AmountMinor, 10)}, "currency": {c.Currency}, "customer": {"cus_floor"},
		"payment_method_types[0]": {"card"}, "metadata[billing_period]": {"floor"},
	})
	if err != nil {
		return err
	}
	_, id, _ := strings.Cut(intent, `"id":"`)
	id, _, found := strings.Cut(id, `"`)
	if !found || !strings.HasPrefix(id, "pi_") {
		return fmt.Errorf("the answer names no intent")
	}
	_, err = d.rawCall(ctx, caller, "/v1/payment_intents/"+id+"/confirm", key, url.Values{"payment_method": {c.PaymentMethodID}, "off_session": {"true"}})
	return err
}

func (d *demo) rawCall(ctx context.Context, caller *http.Client, path, key string, form url.Values) (answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.stand.API+path, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+d.stripeKey)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Idempotency-Key", key)
	res, err := caller.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("POST %s: %s", path, res.Status)
	}
	return string(body), err
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
