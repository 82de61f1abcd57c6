package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// house is the whole program, as often as a test wants it, over one database
// and one stand-in for Stripe.
type house struct {
	t      testing.TB
	dsn    string
	stripe *sim.Server
}

func newHouse(t *testing.T) *house {
	t.Helper()
	t.Parallel()
	stripe, err := sim.Start(sim.Options{Clock: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)})
	if err != nil {
		t.Fatalf("start the stand-in: %v", err)
	}
	t.Cleanup(func() { stripe.Close() })
	return &house{t, pgtest.DSN(t), stripe}
}

// replica is one billingd.
type replica struct {
	*house
	url   string
	stop  func() error
	token string // presented by some of the helpers; empty: none
}

func (h *house) start(change func(*config.Config)) *replica {
	h.t.Helper()
	return h.startApp(change, nil)
}

// startApp also hands out the program itself.
func (h *house) startApp(change func(*config.Config), opened func(*App)) *replica {
	h.t.Helper()
	var out io.Writer = io.Discard
	if os.Getenv("TEST_LOG") != "" {
		out = h.t.Output()
	}
	return h.open(change, opened, out)
}

// startLogging starts a replica whose log somebody reads.
func (h *house) startLogging(change func(*config.Config), log io.Writer) *replica {
	h.t.Helper()
	return h.open(change, nil, log)
}

func (h *house) open(change func(*config.Config), opened func(*App), out io.Writer) *replica {
	h.t.Helper()
	app, err := Open(h.t.Context(), h.settings(change), slog.New(slog.NewTextHandler(out, nil)))
	if err != nil {
		h.t.Fatalf("open: %v", err)
	}
	return h.run(app, opened)
}

// settings are those of a replica.
func (h *house) settings(change func(*config.Config)) config.Config {
	c := config.Config{
		DatabaseURL: settings.NewSecret(h.dsn), DBPool: 8, Listen: "127.0.0.1:0", Grace: 10 * time.Second,
		Environment: "test", StripeBase: h.stripe.APIURL, StripeKey: settings.NewSecret("sk_test_house"),
		StripeTimeout: 2 * time.Second, Lease: 4 * time.Second, Concurrency: 8,
		Poll: 100 * time.Millisecond, ClockURL: h.stripe.ControlURL + "/control/clock",
	}
	if change != nil {
		change(&c)
	}
	return c
}

func (h *house) run(app *App, opened func(*App)) *replica {
	h.t.Helper()
	if opened != nil {
		opened(app)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		err := <-ended
		app.Close()
		return err
	})
	h.t.Cleanup(func() { _ = stop() })
	return &replica{house: h, url: "http://" + app.Address(), stop: stop}
}

// answer is what a command is answered with.
type answer struct {
	Status   int
	Key      string `json:"key"`
	Replayed bool   `json:"replayed"`
	Position string `json:"position"`
	Code     string `json:"code"`
	Bill     struct {
		Status   string `json:"status"`
		ChargeID string `json:"charge_id"`
	} `json:"bill"`
}

func (r *replica) post(ctx context.Context, path, body string) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return a, err
	}
	a.Status = res.StatusCode
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("answer %d %s: %w", res.StatusCode, text, err)
	}
	return a, nil
}

func (r *replica) register(id string) {
	r.t.Helper()
	body := fmt.Sprintf(`{"customer_id":%q,"stripe_customer_id":"cus_%s","payment_method_id":"pm_card_visa"}`, id, id)
	if a, err := r.post(r.t.Context(), "/v1/commands/register-customer", body); err != nil || a.Status != http.StatusOK {
		r.t.Fatalf("register %s: %+v, %v", id, a, err)
	}
}

func chargeBody(id string) string {
	return fmt.Sprintf(`{"customer_id":%q,"billing_period":"2026-11","amount_minor":5000,"currency":"usd"}`, id)
}

func (h *house) charges(id string) (charges []string) {
	for _, m := range h.stripe.Ledger() {
		if m.Status == "succeeded" && m.Metadata["customer_id"] == id {
			charges = append(charges, m.Charge)
		}
	}
	return charges
}

// TestIdenticalCommandsOnTwoReplicas sends fifty identical charge commands to
// two services at once: one charge, and every answer names it.
func TestIdenticalCommandsOnTwoReplicas(t *testing.T) {
	h := newHouse(t)
	replicas := []*replica{h.start(nil), h.start(nil)}
	replicas[0].register("acme")
	var callers sync.WaitGroup
	answers := make([]answer, 50)
	for i := range answers {
		callers.Go(func() {
			a, err := replicas[i%2].post(t.Context(), "/v1/commands/charge-billing?wait=30s", chargeBody("acme"))
			if err != nil {
				t.Errorf("command %d: %v", i, err)
			}
			answers[i] = a
		})
	}
	callers.Wait()
	charges := h.charges("acme")
	if len(charges) != 1 {
		t.Fatalf("charges %v, want one", charges)
	}
	for i, a := range answers {
		if a.Status != http.StatusOK || a.Bill.Status != "paid" || a.Bill.ChargeID != charges[0] {
			t.Errorf("answer %d: %+v; the charge is %s", i, a, charges[0])
		}
	}
}

// TestC062_CallerHangsUp closes the connection while Stripe is slow; the charge is
// recorded all the same, and asking again gives it.
func TestC062_CallerHangsUp(t *testing.T) {
	const crowd = 50
	h := newHouse(t)
	if _, err := h.stripe.AddFault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/confirm"}, Kind: sim.DelayAfterCommit, Delay: 500 * time.Millisecond, Times: -1}); err != nil {
		t.Fatal(err)
	}
	r := h.start(nil)
	for i := range crowd {
		r.register(fmt.Sprint("c", i))
	}
	var callers sync.WaitGroup
	for i := range crowd {
		callers.Go(func() {
			ctx, hangUp := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer hangUp()
			_, _ = r.post(ctx, "/v1/commands/charge-billing?wait=30s", chargeBody(fmt.Sprint("c", i)))
		})
	}
	callers.Wait()
	for i := range crowd {
		id := fmt.Sprint("c", i)
		a, err := r.post(t.Context(), "/v1/commands/charge-billing?wait=30s", chargeBody(id))
		if err != nil || a.Status != http.StatusOK {
			t.Fatalf("asking again for %s: %+v, %v", id, a, err)
		}
		if charges := h.charges(id); len(charges) != 1 || charges[0] != a.Bill.ChargeID {
			t.Errorf("%s: charges %v, the answer names %s", id, charges, a.Bill.ChargeID)
		}
	}
}

// TestReadYourWrite reads with the position of a receipt, and finds what the
// command did in every read model.
func TestReadYourWrite(t *testing.T) {
	h := newHouse(t)
	r := h.start(nil)
	r.register("acme")
	a, err := r.post(t.Context(), "/v1/commands/charge-billing?wait=30s", chargeBody("acme"))
	if err != nil || a.Bill.Status != "paid" {
		t.Fatalf("charge: %+v, %v", a, err)
	}
	for path, want := range map[string]string{
		"/v1/customers/acme":                 `"cus_acme"`,
		"/v1/customers/acme/periods":         `"paid"`,
		"/v1/customers/acme/periods/2026-11": a.Bill.ChargeID,
		"/v1/charges?customer=acme":          a.Bill.ChargeID,
		"/v1/runs/2026-11":                   `"$50.00"`,
		"/v1/revenue":                        `"$50.00"`,
		"/v1/events?stream=customer/acme":    `customer.billed.v1`,
	} {
		var last []byte
		await(t, path+" tells "+want, func() bool {
			res, err := http.Get(r.url + path + join(path) + "after_position=" + a.Position + "&wait=20s")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			last, err = io.ReadAll(res.Body)
			return err == nil && res.StatusCode == http.StatusOK && bytes.Contains(last, []byte(want))
		}, func() string { return string(last) })
	}
}

func join(path string) string {
	if strings.Contains(path, "?") {
		return "&"
	}
	return "?"
}

func await(t testing.TB, what string, met func() bool, seen ...func() string) {
	t.Helper()
	awaitFor(t, 20*time.Second, what, met, seen...)
}

func awaitFor(t testing.TB, limit time.Duration, what string, met func() bool, seen ...func() string) {
	t.Helper()
	for deadline := time.Now().Add(limit); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			for _, s := range seen {
				what += "\nlast seen: " + s()
			}
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

// TestOpenFails: a start that fails says why, and gives back what it had.
func TestOpenFails(t *testing.T) {
	h := newHouse(t)
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	good := config.Config{
		DatabaseURL: settings.NewSecret(h.dsn), DBPool: 4, Listen: taken.Addr().String(), Environment: "test",
		StripeBase: h.stripe.APIURL, StripeKey: settings.NewSecret("sk_test_house"), StripeTimeout: time.Second, Lease: 2 * time.Second, Concurrency: 4, Poll: time.Second,
	}
	away := good
	away.DatabaseURL = settings.NewSecret("postgres://nobody@" + taken.Addr().String() + "/nothing?sslmode=disable&connect_timeout=1")
	for name, settings := range map[string]config.Config{"the port is taken": good, "there is no database": away} {
		if app, err := Open(t.Context(), settings, slog.New(slog.DiscardHandler)); err == nil || app != nil {
			t.Errorf("%s: %v, %v", name, app, err)
		}
	}
}

// A service on a new database is ready as soon as one that finds its schema: what
// was missing before the migration is no refusal.
func TestANewDatabaseIsReadyAtOnce(t *testing.T) {
	h := newHouse(t)
	app, err := Open(t.Context(), config.Config{
		DatabaseURL: settings.NewSecret(pgtest.Empty(t)), DBPool: 4, Listen: "127.0.0.1:0", Environment: "test",
		StripeBase: h.stripe.APIURL, StripeKey: settings.NewSecret("sk_test_house"), StripeTimeout: time.Second, Lease: 2 * time.Second, Concurrency: 4, Poll: time.Second,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	if err := app.writes.check(t.Context()); err != nil {
		t.Errorf("a new database: %v", err)
	}
}
