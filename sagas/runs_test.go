package sagas_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// alarms counts log lines of level ERROR.
type alarms struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (a *alarms) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lines.Write(p)
}

func (a *alarms) list() (lines []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for line := range strings.Lines(a.lines.String()) {
		if strings.Contains(line, `"ERROR"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

// listen makes a rig's services log to somebody who listens.
func (r *rig) listen() *alarms {
	a := &alarms{}
	r.log = slog.New(slog.NewJSONHandler(a, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return a
}

// facts counts facts of a type.
func (r *rig) factsOf(name string) int {
	r.t.Helper()
	return r.count(`SELECT count(*) FROM events WHERE event_type = $1`, name)
}

// The cap is reached in the middle of a run: what had room is charged, the rest
// is held, and one alarm is raised by two replicas with many workers each. After
// a raise and a resumption everything is charged, once.
func TestACapHoldsTheRestOfARun(t *testing.T) {
	r := newRig(t)
	said := r.listen()
	p := newProxy(t, r.stripe.APIURL)
	p.cap = 6 * 5000
	s := r.start(options{proxy: p})
	r.start(options{proxy: p})
	ids := customers(10)
	s.owe(ids...)
	r.eventually("6 bills are charged and 4 held", func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == 6 && r.count(`SELECT count(*) FROM billing_records WHERE state = 'held'`) == 4
	})
	r.eventually("the run is paused", func() bool { return r.count(`SELECT count(*) FROM billing_runs WHERE paused`) == 1 })
	for name, want := range map[string]int{"run.paused.v1": 1, "charge.declined.v1": 0, "customer.billed.v1": 6, "charge.requested.v1": 10} {
		if got := r.factsOf(name); got != want {
			t.Errorf("%d facts %s, want %d", got, name, want)
		}
	}
	// Until the pause is known everywhere, a bill that is held may be asked for
	// once more.
	const want = "run 2026-11 is paused: the spend cap is reached: $50.00 asked, $0.00 left of $300.00; 4 bills held, $200.00"
	var troubles []sagas.RunTrouble
	r.eventually(want, func() bool {
		var err error
		if troubles, err = sagas.RunTroubles(t.Context(), r.pool); err != nil {
			t.Fatal(err)
		}
		return len(troubles) == 1 && troubles[0].String() == want
	})
	if troubles[0].Refusal.Code != "spend_cap_exceeded" || troubles[0].By != "collector" {
		t.Errorf("the trouble is %+v", troubles[0])
	}
	if errors := said.list(); len(errors) != 1 || !strings.Contains(errors[0], "spend_cap_exceeded") {
		t.Errorf("the alarms are %q", errors)
	}

	// Resumed without a raise: one more alarm, in the new turn.
	s.must(commands.Of(commands.NewResumeRun(november, "to see", time.Now(), "k1")))
	r.eventually("it is paused again", func() bool { return r.factsOf("run.paused.v1") == 2 })
	r.eventually("and held", func() bool { return r.count(`SELECT count(*) FROM billing_runs WHERE paused AND turn = 1`) == 1 })

	p.set(func() { p.cap = 100 * 5000 })
	s.must(commands.Of(commands.NewResumeRun(november, "the cap was raised", time.Now(), "k2")))
	r.eventually("all is charged", func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == 10
	})
	r.once(november, ids...)
	if errors := said.list(); len(errors) != 2 {
		t.Errorf("the alarms are %q", errors)
	}
	if n := r.factsOf("charge.declined.v1"); n != 0 {
		t.Errorf("%d bills were declined", n)
	}
}

// What a policy of the proxy refuses pauses the run too; what Stripe itself
// refuses, in the same form, does not: the bill is held and tried again.
func TestAPolicyPausesTheRunAndStripeDoesNot(t *testing.T) {
	for code, pauses := range map[string]int{"key_not_derived": 1, "account_invalid": 0} {
		t.Run(code, func(t *testing.T) {
			r := newRig(t)
			p := newProxy(t, r.stripe.APIURL)
			p.policy = code
			s := r.start(options{proxy: p})
			s.owe("acme")
			r.awaitState("acme", november, "held")
			if pauses > 0 {
				r.eventually("the run is paused", func() bool { return r.count(`SELECT count(*) FROM billing_runs WHERE paused`) == 1 })
			} else {
				r.eventually("it is tried again", func() bool {
					_, err := r.pool.Exec(t.Context(), `UPDATE billing_records SET next_try_at = NULL WHERE state = 'held'`)
					return err == nil && r.factsOf("charge.held.v1") > 1
				})
			}
			if n := r.factsOf("run.paused.v1"); n != pauses {
				t.Errorf("%d pauses, want %d", n, pauses)
			}
		})
	}
}

// A run that a person has paused begins nothing; what is in flight is finished.
func TestAPausedRunFinishesWhatIsInFlight(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	s.owe("flying", "waiting")
	r.awaitState("flying", november, "reserved")
	r.awaitState("waiting", november, "reserved")
	s.must(commands.Of(commands.NewPauseRun(november, "to be checked", time.Now(), "k1")))
	r.eventually("the run is paused", func() bool { return r.count(`SELECT count(*) FROM billing_runs WHERE paused`) == 1 })
	s.charge("flying", domain.PeriodOf(domain.Monthly, 2026, 12))
	collecting := r.start(options{})
	december := domain.PeriodOf(domain.Monthly, 2026, 12)
	r.once(december, "flying") // another run goes on
	for _, id := range []domain.CustomerID{"flying", "waiting"} {
		if state := r.state(id, november); state != "reserved" || r.charged(id, november) != 0 {
			t.Errorf("%s is %s, charged %d times", id, state, r.charged(id, november))
		}
	}
	collecting.must(commands.Of(commands.NewResumeRun(november, "", time.Now(), "k2")))
	r.once(november, "flying", "waiting")
}

// Without a key the proxy is not there yet: nothing is sent, nothing is lost.
func TestNothingIsClaimedBeforeTheProxyKnowsOfIt(t *testing.T) {
	r := newRig(t)
	p := newProxy(t, r.stripe.APIURL)
	p.away = true
	s := r.start(options{proxy: p})
	s.owe("acme")
	r.awaitState("acme", november, "reserved")
	r.eventually("it is in the manifest", func() bool { return r.count(`SELECT count(*) FROM run_manifest WHERE pending`) == 1 })
	s.register("pm_card_visa", "other") // and something more happens
	if n := r.factsOf("charge.attempt_started.v1"); n != 0 {
		t.Errorf("%d attempts were started", n)
	}
	p.set(func() { p.away = false })
	r.once(november, "acme")
	if p.manifest["2026-11/acme"].Amount != 5000 || !p.manifest["2026-11/acme"].Fixed {
		t.Errorf("the proxy was told %+v", p.manifest["2026-11/acme"])
	}
}

// The key is rotated under a running service: the next calls go by a fresh
// secret, and no bill notices. A revoked one holds the bills and pauses the run.
func TestRotationAndRevocationOfARunsKey(t *testing.T) {
	r := newRig(t)
	p := newProxy(t, r.stripe.APIURL)
	s := r.start(options{proxy: p})
	s.owe("one")
	r.once(november, "one")
	p.set(func() { clear(p.secrets) })
	s.owe("two", "three")
	r.once(november, "one", "two", "three")
	if held, notSent := r.factsOf("charge.held.v1"), r.factsOf("charge.not_sent.v1"); held+notSent != 0 {
		t.Errorf("%d bills were held, %d not sent", held, notSent)
	}
	p.set(func() { p.revoked = true })
	s.owe("four")
	r.awaitState("four", november, "held")
	r.eventually("the run is paused", func() bool {
		return r.count(`SELECT count(*) FROM billing_runs WHERE paused AND refusal->>'code' = 'vault_key_invalid'`) == 1
	})
	p.set(func() { p.revoked = false })
	s.must(commands.Of(commands.NewResumeRun(november, "a new key", time.Now(), "k1")))
	r.once(november, "four")
}

// A registrar whose database or process dies in the middle keeps nobody waiting:
// it gives the run back as soon as it can, and only if nobody else has it by now.
func TestARunIsGivenBackWhenTheDatabaseAnswers(t *testing.T) {
	r := newRig(t)
	p := newProxy(t, r.stripe.APIURL)
	p.away = true
	clock := sagas.DatabaseClock(r.pool)
	registrar := sagas.NewRegistrar(p.client(), sagas.NewRunKeys(p.client(), r.pool, clock, "test"), r.pool, clock, time.Second, func() error { return nil }, func() {}, r.log)
	r.exec(`INSERT INTO run_manifest (billing_period, customer_id, amount_minor, currency, stripe_customer_id, fixed, version) VALUES ('2026-11', 'acme', 5000, 'usd', 'cus_1', true, 1)`)
	r.exec(`CREATE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the database is away' USING ERRCODE = '57P01'; END $$`)
	r.exec(`CREATE TRIGGER away BEFORE UPDATE ON billing_runs FOR EACH ROW WHEN (NEW.registering_until IS NULL) EXECUTE FUNCTION away()`)
	if _, err := registrar.Register(t.Context()); err == nil {
		t.Fatal("the proxy is away, and nothing is said")
	}
	p.set(func() { p.away = false })
	if _, err := registrar.Register(t.Context()); err == nil || r.count(`SELECT count(*) FROM run_manifest WHERE pending`) != 1 {
		t.Fatalf("the database is away: %v", err)
	}
	r.exec(`DROP TRIGGER away ON billing_runs`)
	if _, err := registrar.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.count(`SELECT count(*) FROM run_manifest WHERE registered AND NOT pending`); n != 1 {
		t.Errorf("the run is not registered as soon as the database answers")
	}
	if n := r.count(`SELECT count(*) FROM billing_runs WHERE registering_until > clock_timestamp() + interval '15 seconds'`); n != 0 {
		t.Error("a run whose replica dies is nobody's for more than 15 seconds")
	}

	// Another replica takes the run while the answer of the former is under way.
	r.exec(`UPDATE run_manifest SET pending = true`)
	p.set(func() {
		p.meanwhile = func() {
			r.exec(`UPDATE billing_runs SET registering_until = clock_timestamp() + interval '10 seconds'`)
		}
	})
	if _, err := registrar.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.count(`SELECT count(*) FROM billing_runs WHERE registering_until > clock_timestamp()`); n != 1 {
		t.Error("the other replica's lease was ended")
	}
}

// A copy of the database that somebody starts expects what was expected when it
// was made. It tells the proxy nothing before it is adopted: entries are fixed
// for ever, and those of the database that is in use would be refused.
func TestACopyTellsTheProxyNothing(t *testing.T) {
	r := newRig(t)
	p := newProxy(t, r.stripe.APIURL)
	s := r.start(options{proxy: p})
	s.owe("acme")
	r.once(november, "acme")
	s.stop()
	r.exec(`UPDATE environment SET database_oid = '77'`)
	told := p.told
	s = r.start(options{proxy: p})
	s.awaitReason("another database")
	s.owe("other")
	r.awaitState("other", november, "reserved")
	r.eventually("it is in the manifest", func() bool { return r.count(`SELECT count(*) FROM run_manifest WHERE pending`) == 1 })
	if more, err := s.registrar.Register(t.Context()); more || err != nil {
		t.Errorf("register: %v, %v", more, err)
	}
	if p.told != told || r.count(`SELECT count(*) FROM run_manifest WHERE pending`) != 1 {
		t.Errorf("the proxy was told of %d bills by a copy", p.told-told)
	}
	s.adopt()
	r.once(november, "acme", "other")
}

// An entry that the proxy does not take is a finding; the others are collected.
// It is not asked for again and again.
func TestEntriesThatTheProxyRefusesAreAFinding(t *testing.T) {
	r := newRig(t)
	said := r.listen()
	p := newProxy(t, r.stripe.APIURL)
	ids := customers(250)
	for _, id := range ids[:120] { // more than the proxy names in one answer
		p.refuse[string(id)] = "entry_fixed"
	}
	r.pool.Exec(t.Context(), `INSERT INTO run_manifest (billing_period, customer_id, amount_minor, currency, stripe_customer_id, fixed, version)
		SELECT '2026-11', 'cust-' || lpad(n::text, 3, '0'), 5000, 'usd', 'cus_1', true, 1 FROM generate_series(0, 249) n`)
	r.start(options{proxy: p})
	r.eventually("all are settled", func() bool { return r.count(`SELECT count(*) FROM run_manifest WHERE NOT pending`) == 250 })
	if registered, refused := r.count(`SELECT count(*) FROM run_manifest WHERE registered`), r.count(`SELECT count(*) FROM run_manifest WHERE refused = 'entry_fixed'`); registered != 130 || refused != 120 {
		t.Errorf("%d are registered and %d refused", registered, refused)
	}
	r.eventually("it is said", func() bool { return len(said.list()) > 0 })
	troubles, err := sagas.RunTroubles(t.Context(), r.pool)
	if err != nil || len(troubles) != 1 || !strings.Contains(troubles[0].String(), "entry_fixed") || troubles[0].Paused {
		t.Errorf("troubles: %v, %v", troubles, err)
	}
}

// A key is issued for as long as its bills may be collected, and extended for
// those that are late.
func TestARunsKeyLivesAsLongAsItsBills(t *testing.T) {
	r := newRig(t)
	p := newProxy(t, r.stripe.APIURL)
	s := r.start(options{proxy: p})
	s.owe("acme")
	r.once(november, "acme")
	var expires time.Time
	if err := r.pool.QueryRow(t.Context(), `SELECT expires_at FROM billing_runs WHERE billing_period = '2026-11'`).Scan(&expires); err != nil {
		t.Fatal(err)
	}
	// The last of November, wherever it ends last; a week of dunning; a week.
	if want := time.Date(2026, 12, 15, 14, 0, 0, 0, time.UTC); !expires.Equal(want) {
		t.Errorf("it expires at %s, want %s", expires, want)
	}
	p.set(func() { p.cap = 1 }) // the next bill is held until long after that
	s.owe("late")
	r.awaitState("late", november, "held")
	r.stripe.SetClock(time.Date(2027, 2, 1, 0, 0, 0, 0, time.UTC))
	s.stop()
	p.set(func() { p.cap = 0 })
	again := r.start(options{proxy: p})
	again.must(commands.Of(commands.NewResumeRun(november, "", time.Now(), "k1")))
	r.once(november, "late")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.extended.Before(time.Date(2027, 2, 14, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("it was extended until %s", p.extended)
	}
}

// No secret of a run is in the database, in a log or in what prints.
func TestRunSecretsStayInMemory(t *testing.T) {
	r := newRig(t)
	said := r.listen()
	p := newProxy(t, r.stripe.APIURL)
	s := r.start(options{proxy: p})
	s.owe("acme")
	r.once(november, "acme")
	s.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.secrets) == 0 {
		t.Fatal("no secret was issued")
	}
	said.mu.Lock()
	log := said.lines.String()
	said.mu.Unlock()
	keys := sagas.NewRunKeys(p.client(), r.pool, nil, "test")
	printed := fmt.Sprintf("%v %+v %#v", keys, keys, keys)
	for secret := range p.secrets {
		if strings.Contains(log, secret) || strings.Contains(printed, secret) {
			t.Errorf("a secret is shown")
		}
		for _, table := range []string{"events", "billing_runs", "billing_records", "run_manifest", "command_keys"} {
			if n := r.count(`SELECT count(*) FROM `+table+` x WHERE strpos(to_jsonb(x)::text, $1) > 0`, secret); n > 0 {
				t.Errorf("%s holds a secret", table)
			}
		}
	}
	if strings.Contains(log, serviceToken) {
		t.Error("the log shows the service token")
	}
	if !json.Valid([]byte(strings.SplitN(log, "\n", 2)[0])) {
		t.Error("nothing was logged")
	}
}
