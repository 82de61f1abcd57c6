package ledger_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// Property tests start from a fixed seed, so that a run can be repeated;
// -rapid.seed=0 draws another one each time.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.seed": "20261201", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	flag.Parse()
	os.Exit(m.Run())
}

var discard = slog.New(slog.DiscardHandler)

// clock is a business clock that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now(context.Context) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, nil
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// database makes a database with the ledger's schema.
func database(t testing.TB) string {
	t.Helper()
	dsn := pgtest.Empty(t)
	if err := ledger.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	return dsn
}

// rig is a ledger on a database of its own, with a clock that stands.
type rig struct {
	testing.TB
	*ledger.Ledger
	dsn   string
	pool  *pgxpool.Pool
	clock *clock
}

func newRig(t testing.TB) *rig {
	t.Helper()
	dsn, c := database(t), newClock()
	pool := pgtest.Connect(t, dsn, 6)
	return &rig{t, ledger.New(pool, ledger.Options{Now: c.Now, Log: discard}), dsn, pool, c}
}

// beside is the same ledger in another process.
func (r *rig) beside(dsn string) *ledger.Ledger {
	r.Helper()
	return ledger.New(pgtest.Connect(r, dsn, 6), ledger.Options{Now: r.clock.Now, Log: discard})
}

var everything = []policy.Rule{
	policy.IntentsCreate, policy.IntentsConfirm, policy.IntentsCancel, policy.ChargesCreate, policy.RefundsCreate,
}

// key issues a key without a manifest and a cap in dollars.
func (r *rig) key(minor int64) string { return r.keyOf(ledger.Issue{}, minor) }

func (r *rig) keyOf(i ledger.Issue, minor int64) string {
	r.Helper()
	if i.Grant.Rules == nil {
		i.Grant.Rules = everything
	}
	if i.Caps == nil && minor > 0 {
		i.Caps = []ledger.CapTerms{{Currency: "usd", Minor: minor}}
	}
	k, _, _, err := r.Issue(r.Context(), i)
	if err != nil {
		r.Fatal(err)
	}
	return k.ID
}

// runKey issues the key of a run and registers its bills.
func (r *rig) runKey(run string, entries ...ledger.Entry) string {
	r.Helper()
	id := r.keyOf(ledger.Issue{Run: run, Environment: "test", Grant: policy.Grant{Rules: policy.RunRules, Manifest: true}}, 0)
	r.register(id, entries...)
	return id
}

func (r *rig) register(id string, entries ...ledger.Entry) ledger.Registered {
	r.Helper()
	done, err := r.Register(r.Context(), id, all(entries))
	if err != nil {
		r.Fatal(err)
	}
	return done
}

func all(entries []ledger.Entry) func(func(ledger.Entry, error) bool) {
	return func(yield func(ledger.Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func bill(customer string) policy.BillID {
	return policy.BillID{Customer: domain.CustomerID(customer), Period: domain.PeriodOf(domain.Monthly, 2026, 11)}
}

func usd(minor int64) domain.Money { return domain.Money{Minor: minor, Currency: "usd"} }

func entry(customer string, minor int64) ledger.Entry {
	return ledger.Entry{Obligation: policy.Obligation{Bill: bill(customer), Amount: usd(minor), StripeCustomer: "cus_" + customer}}
}

func fingerprint(parts ...any) [32]byte { return sha256.Sum256(fmt.Append(nil, parts...)) }

// charge is a legacy charge of dollars under a key.
func charge(key string, minor int64) policy.Call {
	return policy.Call{
		Method: "POST", Path: "/v1/charges", Rule: policy.ChargesCreate, Key: key, Fingerprint: fingerprint("charge", minor),
		Amount: minor, Currency: "usd",
	}
}

func confirm(key, intent string) policy.Call {
	return policy.Call{
		Method: "POST", Path: "/v1/payment_intents/" + intent + "/confirm", Rule: policy.IntentsConfirm, Object: intent, Key: key,
		Fingerprint: fingerprint("confirm", intent),
	}
}

func cancel(key, intent string) policy.Call {
	return policy.Call{
		Method: "POST", Path: "/v1/payment_intents/" + intent + "/cancel", Rule: policy.IntentsCancel, Object: intent, Key: key,
		Fingerprint: fingerprint("cancel", intent),
	}
}

func create(key string, b policy.BillID, minor int64) policy.Call {
	c := policy.Call{
		Method: "POST", Path: "/v1/payment_intents", Rule: policy.IntentsCreate, Key: key, Fingerprint: fingerprint("create", b, minor),
		Amount: minor, Currency: "usd", Bill: b,
	}
	if !b.IsZero() {
		c.StripeCustomer = "cus_" + string(b.Customer)
	}
	return c
}

// intent is what Stripe shows of an intent.
func intent(id string, state policy.ObjectState, minor int64) policy.Evidence {
	e := policy.Evidence{Object: id, State: state, Amount: usd(minor)}
	if state == policy.Succeeded {
		e.Received = minor
	}
	return e
}

func ask(vaultKey string, c policy.Call) ledger.Ask {
	return ledger.Ask{ID: uuid.NewString(), VaultKey: vaultKey, Call: c, Verdict: policy.Verdict{Allow: true}}
}

// begin asks, and fails the test on an error.
func (r *rig) begin(vaultKey string, c policy.Call) (string, ledger.Decision) {
	r.Helper()
	a := ask(vaultKey, c)
	d, err := r.Begin(r.Context(), a)
	if err != nil {
		r.Fatal(err)
	}
	return a.ID, d
}

// forward begins a call that must pass.
func (r *rig) forward(vaultKey string, c policy.Call) string {
	r.Helper()
	id, d := r.begin(vaultKey, c)
	if !d.Forward {
		r.Fatalf("%s %s is not forwarded: %+v", c.Rule, c.Key, d)
	}
	return id
}

// refused begins a call that must be refused with a code.
func (r *rig) refused(vaultKey string, c policy.Call, code policy.Code) {
	r.Helper()
	if _, d := r.begin(vaultKey, c); d.Forward || d.Answer != nil || d.Learn != "" || d.Verdict.Allow || d.Verdict.Code != code {
		r.Errorf("%s %s: %+v, want %s", c.Rule, c.Key, d, code)
	}
}

func (r *rig) finish(res ledger.Result) {
	r.Helper()
	if err := r.Finish(r.Context(), res); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) observe(seen ...policy.Evidence) {
	r.Helper()
	if err := r.Observe(r.Context(), seen); err != nil {
		r.Fatal(err)
	}
}

// Results of calls.
func paid(id string, e policy.Evidence) ledger.Result {
	return ledger.Result{ID: id, Fate: ledger.Answered, Evidence: &e, Answer: ledger.Answer{
		Status: 200, ContentType: "application/json", RequestID: "req_" + id[:8], Body: fmt.Appendf(nil, `{"id":%q, "made_by":%q}`, e.Object, id),
	}}
}

func shows(id string, e policy.Evidence) ledger.Result { return paid(id, e) }

func declined(id string) ledger.Result {
	return ledger.Result{ID: id, Fate: ledger.Answered, Refused: true, Settles: true, Answer: ledger.Answer{Status: 402}}
}

func refusal(id string, status int) ledger.Result {
	return ledger.Result{ID: id, Fate: ledger.Answered, Refused: true, Answer: ledger.Answer{Status: status}}
}

func lost(id string) ledger.Result   { return ledger.Result{ID: id, Fate: ledger.Lost} }
func unsent(id string) ledger.Result { return ledger.Result{ID: id, Fate: ledger.Unsent} }

func ch(id string, minor int64) policy.Evidence {
	return policy.Evidence{Object: id, State: policy.Succeeded, Amount: usd(minor), Received: minor}
}

// books reads what a key holds and has spent in dollars.
func (r *rig) books(vaultKey string) ledger.Cap {
	r.Helper()
	k, err := r.Key(r.Context(), vaultKey)
	if err != nil {
		r.Fatal(err)
	}
	for _, c := range k.Caps {
		if c.Currency == "usd" {
			return c
		}
	}
	return ledger.Cap{}
}

func (r *rig) wantBooks(vaultKey string, spent, held, charges int64) {
	r.Helper()
	if c := r.books(vaultKey); c.Spent != spent || c.Held != held || c.Charges != charges {
		r.Errorf("the books of %s: %d spent, %d held, %d charges; want %d, %d, %d", vaultKey, c.Spent, c.Held, c.Charges, spent, held, charges)
	}
}

func equalAnswer(a, b ledger.Answer) bool {
	return a.Status == b.Status && a.ContentType == b.ContentType && a.RequestID == b.RequestID && bytes.Equal(a.Body, b.Body)
}
