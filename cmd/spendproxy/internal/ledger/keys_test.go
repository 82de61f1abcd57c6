package ledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// Several proxies start at once on an empty database.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			if err := ledger.Migrate(t.Context(), dsn); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	if err := ledger.Migrate(t.Context(), "postgres://ann:marker@h:bad"); err == nil || strings.Contains(err.Error(), "marker") {
		t.Error(err)
	}
}

// A run has one key, whoever issues it, with a secret for each.
func TestIssuingForARun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	i := ledger.Issue{Run: "2026-11", Environment: "live", Label: "run", Grant: policy.Grant{Rules: policy.RunRules, Manifest: true}}
	var mu sync.Mutex
	ids, secrets := map[string]bool{}, map[string]bool{}
	var issuing sync.WaitGroup
	for n := range 6 {
		l := r.Ledger
		if n%2 == 1 {
			l = r.beside(r.dsn)
		}
		issuing.Go(func() {
			k, secret, _, err := l.Issue(t.Context(), i)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[k.ID], secrets[secret] = true, true
		})
	}
	issuing.Wait()
	if len(ids) != 1 || len(secrets) != 6 {
		t.Errorf("%d keys, %d secrets", len(ids), len(secrets))
	}
	for secret := range secrets {
		if k, ok, why, err := r.Authenticate(t.Context(), secret); err != nil || !ok || !ids[k.ID] || !k.Grant.Manifest {
			t.Errorf("%+v, %s, %v", k, why, err)
		}
	}
	other := i
	other.Environment = "test"
	if k, _, existed, err := r.Issue(t.Context(), other); err != nil || existed || ids[k.ID] {
		t.Errorf("another environment: %+v, %v", k, err)
	}
	for id := range ids {
		if err := r.Revoke(t.Context(), id, "over", "ada"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, _, err := r.Issue(t.Context(), i); !errors.Is(err, ledger.ErrRevoked) {
		t.Error(err)
	}
	for _, bad := range []ledger.Issue{
		{CountCap: -1}, {Grant: policy.Grant{Mode: "lax"}}, {Grant: policy.Grant{Window: "week"}}, {Grant: policy.Grant{Manifest: true, Mode: policy.Open}},
		{Caps: []ledger.CapTerms{{Currency: "USD", Minor: 1}}}, {Caps: []ledger.CapTerms{{Currency: "usd", Minor: -1}}},
		{Caps: []ledger.CapTerms{{Currency: "usd"}, {Currency: "usd"}}}, {Label: "a\x00b"},
		{Grant: policy.Grant{Expires: time.Unix(1, 0)}},
	} {
		if _, _, _, err := r.Issue(t.Context(), bad); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A secret holds until it retires, and its key until it expires or is revoked,
// each from the next request on.
func TestSecretsLives(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now, _ := r.clock.Now(t.Context())
	k, first, _, err := r.Issue(t.Context(), ledger.Issue{Grant: policy.Grant{Rules: everything, Expires: now.Add(time.Hour)}, Caps: []ledger.CapTerms{{Currency: "usd", Minor: 9}}})
	if err != nil {
		t.Fatal(err)
	}
	gate := func(secret, want string) {
		t.Helper()
		_, ok, why, err := r.Authenticate(t.Context(), secret)
		if err != nil || ok != (want == "") || !strings.Contains(why, want) {
			t.Errorf("%t, %q, %v; want %q", ok, why, err, want)
		}
	}
	gate(first, "")
	for _, wrong := range []string{"", "vk_", "null", "vk_" + k.ID + "_", first[:len(first)-1], first + "0", strings.ToUpper(first), "vk_0123456789abcdef_" + strings.Repeat("0", 64)} {
		gate(wrong, "not")
	}
	gate(first[:len(first)-1]+string('0'+(first[len(first)-1]+1)%8), "not known")
	second, err := r.Rotate(t.Context(), k.ID, 10*time.Minute, "ada")
	if err != nil {
		t.Fatal(err)
	}
	gate(first, "")
	gate(second, "")
	r.clock.advance(10 * time.Minute)
	gate(first, "retired")
	gate(second, "")
	r.clock.advance(50 * time.Minute)
	gate(second, "expired")
	r.refused(k.ID, charge("x", 1), policy.CodeVaultKey)
	if now, _ := r.clock.Now(t.Context()); true {
		if got, err := r.Extend(t.Context(), k.ID, now.Add(time.Hour), "longer", "ada"); err != nil || !got.Grant.Expires.Equal(now.Add(time.Hour)) {
			t.Errorf("%+v, %v", got, err)
		}
		if got, err := r.Extend(t.Context(), k.ID, now.Add(time.Minute), "shorter", "ada"); err != nil || !got.Grant.Expires.Equal(now.Add(time.Hour)) {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := r.Extend(t.Context(), k.ID, now, "never", "ada"); !errors.Is(err, ledger.ErrInvalid) {
			t.Error(err)
		}
	}
	gate(second, "")
	if err := r.Revoke(t.Context(), k.ID, "leaked", "ada"); err != nil {
		t.Fatal(err)
	}
	gate(second, "revoked")
	gate(first, "revoked")
	r.refused(k.ID, charge("x", 1), policy.CodeVaultKey)
	if err := r.Revoke(t.Context(), k.ID, "again", "ada"); err != nil {
		t.Error(err)
	}
	shown, err := r.Key(t.Context(), k.ID)
	if err != nil || shown.Reason != "leaked" || len(shown.Secrets) != 2 || shown.Secrets[0].Last4 == "" || shown.Secrets[0].RetiresAt.IsZero() {
		t.Errorf("%+v, %v", shown, err)
	}
	changes, err := r.Raises(t.Context(), k.ID)
	if err != nil || len(changes) != 3 || changes[0].What != "rotate" || changes[1].What != "extend" || changes[2].What != "revoke" {
		t.Errorf("%+v, %v", changes, err)
	}
	for _, err := range []error{
		second1(r.Rotate(t.Context(), k.ID, 0, "ada")), second1(r.Extend(t.Context(), k.ID, now.Add(time.Hour*99), "x", "ada")),
		second1(r.Raise(t.Context(), ledger.Raise{Key: k.ID, Currency: "usd", More: 1, Reason: "x"})),
	} {
		if !errors.Is(err, ledger.ErrRevoked) {
			t.Error(err)
		}
	}
}

func second1[T any](_ T, err error) error { return err }

// Raises for a time end by themselves, those for good do not; a word to which the
// cap is set ends the others.
func TestRaises(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(1000)
	now, _ := r.clock.Now(t.Context())
	amount := func(n int64) *int64 { return &n }
	raise := func(x ledger.Raise, want int64) {
		t.Helper()
		x.Key, x.Currency, x.Reason = k, "usd", "a test"
		if _, err := r.Raise(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		if c := r.books(k); c.Minor != want {
			t.Errorf("the cap is %d, want %d", c.Minor, want)
		}
	}
	raise(ledger.Raise{More: 500, Until: now.Add(time.Hour)}, 1500)
	r.forward(k, charge("k1", 1500))
	raise(ledger.Raise{To: amount(5000), Until: now.Add(2 * time.Hour)}, 5000)
	raise(ledger.Raise{More: 100}, 5100)
	r.clock.advance(time.Hour)
	if c := r.books(k); c.Minor != 4600 {
		t.Errorf("%+v", c)
	}
	r.clock.advance(time.Hour)
	if c := r.books(k); c.Minor != 1100 || c.Held != 1500 {
		t.Errorf("%+v", c)
	}
	r.refused(k, charge("k2", 1), policy.CodeCapExceeded)
	raise(ledger.Raise{More: 500, Until: now.Add(99 * time.Hour)}, 1600)
	r.forward(k, charge("k2", 100))
	raise(ledger.Raise{To: amount(0)}, 0)
	r.refused(k, charge("k3", 1), policy.CodeCapExceeded)
	for _, bad := range []ledger.Raise{
		{Currency: "usd", Reason: "x"}, {Currency: "usd", More: 1, To: amount(1), Reason: "x"}, {Currency: "usd", More: -1, Reason: "x"},
		{Currency: "usd", To: amount(-1), Reason: "x"}, {Currency: "usd", More: 1}, {Currency: "zzz", More: 1, Reason: "x"},
		{Currency: "usd", More: 1, Until: now, Reason: "x"}, {Currency: "usd", More: 1, Reason: strings.Repeat("x", 501)},
	} {
		bad.Key = k
		if _, err := r.Raise(t.Context(), bad); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	raise(ledger.Raise{To: amount(1<<63 - 1)}, 1<<63-1)
	if _, err := r.Raise(t.Context(), ledger.Raise{Key: k, Currency: "usd", More: 1, Reason: "x"}); !errors.Is(err, ledger.ErrInvalid) {
		t.Error(err)
	}
	if _, err := r.Raise(t.Context(), ledger.Raise{Key: "none", Currency: "usd", More: 1, Reason: "x"}); !errors.Is(err, ledger.ErrNoKey) {
		t.Error(err)
	}
}

// Keys are listed in the order of their issuing, page by page.
func TestKeysAreListed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var ids []string
	for n := range 5 {
		ids = append(ids, r.keyOf(ledger.Issue{Label: fmt.Sprint("l", n%2)}, 10))
		r.clock.advance(time.Second)
	}
	if err := r.Revoke(t.Context(), ids[2], "x", "ada"); err != nil {
		t.Fatal(err)
	}
	of := func(f ledger.KeyFilter) (got []string) {
		t.Helper()
		keys, err := r.Keys(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			got = append(got, k.ID)
			if len(k.Caps) != 1 || k.Caps[0].Minor != 10 {
				t.Errorf("%+v", k)
			}
		}
		return got
	}
	for _, one := range []struct {
		filter ledger.KeyFilter
		want   []string
	}{
		{ledger.KeyFilter{}, ids}, {ledger.KeyFilter{Limit: 2}, ids[:2]}, {ledger.KeyFilter{After: ids[1], Limit: 2}, ids[2:4]},
		{ledger.KeyFilter{Live: true}, []string{ids[0], ids[1], ids[3], ids[4]}}, {ledger.KeyFilter{Label: "l1"}, []string{ids[1], ids[3]}},
		{ledger.KeyFilter{Run: "none"}, nil},
	} {
		if got := of(one.filter); fmt.Sprint(got) != fmt.Sprint(one.want) {
			t.Errorf("%+v: %v, want %v", one.filter, got, one.want)
		}
	}
	if _, err := r.Keys(t.Context(), ledger.KeyFilter{After: "none"}); !errors.Is(err, ledger.ErrInvalid) {
		t.Error(err)
	}
	if _, err := r.Key(t.Context(), "none"); !errors.Is(err, ledger.ErrNoKey) {
		t.Error(err)
	}
}

// The audit tells every call before and after, page by page, and no secret.
func TestAudit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var words bytes.Buffer
	l := ledger.New(r.pool, ledger.Options{Now: r.clock.Now, Log: slog.New(slog.NewTextHandler(&words, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	k, secret, _, err := l.Issue(t.Context(), ledger.Issue{Run: "run", Grant: policy.Grant{Rules: policy.RunRules, Manifest: true}})
	if err != nil {
		t.Fatal(err)
	}
	a := bill("a")
	r.register(k.ID, entry("a", 1000))
	r.finish(shows(r.forward(k.ID, create(createKey(a, 1), a, 1000)), intentOf("pi_1", a, policy.Unpaid, 1000)))
	done := paid(r.forward(k.ID, confirm(confirmKey(a, 1, 1), "pi_1")), intentOf("pi_1", a, policy.Succeeded, 1000))
	done.Latency = 1500 * time.Millisecond
	r.finish(done)
	r.refused(k.ID, create("random", a, 1000), policy.CodePaid)
	now, _ := r.clock.Now(t.Context())
	l.Note(ledger.Note{
		ID: "read-1", VaultKey: k.ID, Call: policy.Call{Method: "GET", Path: "/v1/payment_intents/pi_1", Rule: policy.IntentsRead, Object: "pi_1"},
		Verdict: policy.Verdict{Allow: true}, Status: 200, RequestID: "req_9", Began: now, Latency: time.Second,
	})
	l.Note(ledger.Note{ID: "bad-1", Call: policy.Call{Method: "POST", Path: "/v1/\x00\xff" + strings.Repeat("x", 600)}, Verdict: policy.Refuse(403, policy.CodeTarget, "no"), Status: 403, Began: now})
	running(t, l)() // writes what waits, and ends

	calls, next, err := r.Calls(t.Context(), ledger.CallFilter{Customer: "a", Period: "2026-11", Limit: 3})
	if err != nil || len(calls) != 3 || next == "" {
		t.Fatalf("%+v, %q, %v", calls, next, err)
	}
	rest, next, err := r.Calls(t.Context(), ledger.CallFilter{Customer: "a", Period: "2026-11", After: next})
	if err != nil || len(rest) != 2 || next != "" {
		t.Fatalf("%+v, %q, %v", rest, next, err)
	}
	var told []string
	for _, c := range append(calls, rest...) {
		told = append(told, fmt.Sprintf("%s %s %s %s %d %s %d %s", c.Phase, c.Rule, c.Verdict, c.Object, c.Amount, c.Reservation, c.Status, c.Code))
	}
	want := []string{
		"before intents:create allow  1000 none 0 ", "after intents:create allow pi_1 1000 none 200 ",
		"before intents:confirm allow pi_1 1000 reserved 0 ", "after intents:confirm allow pi_1 1000 settled 200 ",
		"before intents:create refuse  1000 none 403 already_charged",
	}
	if strings.Join(told, "\n") != strings.Join(want, "\n") {
		t.Errorf("told:\n%s\nwant:\n%s", strings.Join(told, "\n"), strings.Join(want, "\n"))
	}
	if after := rest[0]; after.Latency != 1500*time.Millisecond || after.RequestID != done.Answer.RequestID || !after.At.Equal(now) || after.IdempotencyKey != confirmKey(a, 1, 1) {
		t.Errorf("%+v", after)
	}
	if reads, _, err := r.Calls(t.Context(), ledger.CallFilter{Object: "pi_1", VaultKey: k.ID}); err != nil || len(reads) != 5 {
		t.Errorf("%+v, %v", reads, err)
	}
	if bad, _, err := r.Calls(t.Context(), ledger.CallFilter{Refused: true}); err != nil || len(bad) != 3 {
		t.Errorf("%+v, %v", bad, err)
	}
	if _, _, err := r.Calls(t.Context(), ledger.CallFilter{After: "x'"}); !errors.Is(err, ledger.ErrInvalid) {
		t.Error(err)
	}
	var everything string
	err = r.pool.QueryRow(t.Context(), `SELECT string_agg(t::text, E'\n') FROM (
		SELECT s::text FROM spendproxy.secrets s UNION ALL SELECT a::text FROM spendproxy.audit a UNION ALL SELECT k::text FROM spendproxy.vault_keys k) AS t`).Scan(&everything)
	if random := secret[len("vk_")+17:]; err != nil || everything == "" || strings.Contains(everything, random) || strings.Contains(words.String(), random) {
		t.Errorf("the secret is in the database or the log: %v", err)
	}
}
