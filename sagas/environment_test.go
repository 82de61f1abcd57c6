package sagas_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/billonce/billonce/sagas"
)

// account reads whose key it is, as the stand-in tells.
func (r *rig) account(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.stripe.APIURL+"/v1/account", nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer sk_test_rig")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var account struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(res.Body).Decode(&account); err != nil || account.ID == "" {
		return "", fmt.Errorf("account %q: %w", account.ID, err)
	}
	return account.ID, nil
}

// awaitReason waits until the collector says why it collects nothing.
func (s *service) awaitReason(part string) {
	s.t.Helper()
	s.eventually("nothing is collected: "+part, func() bool {
		err := s.collector.Environment().Ready()
		return err != nil && strings.Contains(err.Error(), part)
	})
}

func (s *service) adopt() {
	s.t.Helper()
	s.eventually("adopted", func() bool {
		_, err := s.collector.Adopt(s.t.Context(), "test", "it is the right one")
		if err != nil && !errors.Is(err, sagas.ErrNotLookedAt) {
			s.t.Fatal(err)
		}
		return err == nil
	})
}

// TestFirstStartSaysWhere: the first start writes where the database belongs,
// another one finds itself at home, and there is nothing to adopt.
func TestFirstStartSaysWhere(t *testing.T) {
	r := newRig(t)
	at := options{environment: "production", account: r.account}
	s := r.start(at)
	s.owe("acme")
	r.once(november, "acme")
	r.start(at)
	want, err := r.account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var name, account string
	var system, timeline bool
	if err := r.pool.QueryRow(t.Context(), `SELECT name, stripe_account, system_identifier = (SELECT system_identifier::text FROM pg_control_system()),
		timeline = (SELECT timeline_id FROM pg_control_checkpoint()) FROM environment`).Scan(&name, &account, &system, &timeline); err != nil {
		t.Fatal(err)
	}
	if name != "production" || account != want || !system || !timeline {
		t.Errorf("name %q, account %q (want %q), system %t, timeline %t", name, account, want, system, timeline)
	}
	if _, err := s.collector.Adopt(t.Context(), "test", "for fun"); !errors.Is(err, sagas.ErrNothingToAdopt) {
		t.Errorf("adopting what fits: %v", err)
	}
}

// TestAnotherAccount starts on a database whose money is in another Stripe
// account. Not even a list is read there before an operator has adopted it, and
// how far the other account's lists were read counts for nothing.
func TestAnotherAccount(t *testing.T) {
	r := newRig(t)
	s := r.start(options{account: func(context.Context) (string, error) { return "acct_other", nil }})
	s.owe("acme")
	r.once(november, "acme")
	s.stop()
	requests := len(r.stripe.Requests())
	s = r.start(options{account: r.account})
	s.awaitReason("Stripe account acct_other")
	s.owe("other")
	r.awaitState("other", november, "reserved")
	for _, q := range r.stripe.Requests()[requests:] {
		if q.Path != "/v1/account" {
			t.Errorf("%s %s before the database was adopted", q.Method, q.Path)
		}
	}
	s.adopt()
	r.once(november, "acme", "other")
}

// TestAccountUnknown: as long as the account cannot be read nothing is
// collected, and nothing adopted.
func TestAccountUnknown(t *testing.T) {
	r := newRig(t)
	var known atomic.Bool
	s := r.start(options{account: func(ctx context.Context) (string, error) {
		if !known.Load() {
			return "", errors.New("no answer")
		}
		return r.account(ctx)
	}})
	s.owe("acme")
	s.awaitReason("the Stripe account cannot be read")
	if _, err := s.collector.Adopt(t.Context(), "test", "blindly"); !errors.Is(err, sagas.ErrAccountUnknown) {
		t.Errorf("adopting blindly: %v", err)
	}
	if n := r.stripe.Counters().Creates; n != 0 {
		t.Errorf("%d intents were created", n)
	}
	known.Store(true)
	r.once(november, "acme")
}

// TestOtherServer moves the data to another server, and then to another
// timeline, under a running service: it stops by itself, looks anew, and goes
// on once it is adopted.
func TestOtherServer(t *testing.T) {
	for column, reason := range map[string]string{"system_identifier": "another server", "timeline": "promoted or recovered", "database_oid": "another database"} {
		t.Run(column, func(t *testing.T) {
			r := newRig(t)
			s := r.start(options{})
			s.owe("acme")
			r.once(november, "acme")
			// What was written is another server's: as if the data had been moved here.
			if _, err := r.pool.Exec(t.Context(), `UPDATE environment SET `+column+` = '77'`); err != nil {
				t.Fatal(err)
			}
			s.owe("other")
			s.awaitReason(reason)
			if n := r.charged("other", november); n != 0 {
				t.Errorf("%d charges before the database was adopted", n)
			}
			s.adopt()
			r.once(november, "acme", "other")
		})
	}
}

// TestLogGoesBack takes the whole database back in time under a running
// service, without a restart, a new connection or another name: the log no
// longer holds the newest fact that the service has seen. Claims from before
// count for nothing; what was charged since is found.
func TestLogGoesBack(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.register("pm_card_visa", "early", "late", "frozen", "new")
	s.charge("early", november)
	r.once(november, "early")
	s.stop()
	tables := []string{"events", "command_keys", "sagas", "subscription_schedule", "billing_records", "looks", "processor_tokens", "dead_letters", "environment"}
	for _, table := range tables {
		if _, err := r.pool.Exec(t.Context(), `CREATE TABLE backup_`+table+` AS TABLE `+table); err != nil {
			t.Fatal(err)
		}
	}

	wrap, frozen, thaw := freezeOnce(t, "before", "confirm")
	s = r.start(options{gateway: wrap, lease: time.Minute, concurrency: 1})
	s.charge("frozen", november)
	<-frozen
	other := r.start(options{})
	other.charge("late", november)
	r.once(november, "late")

	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	for _, table := range tables {
		if _, err := tx.Exec(t.Context(), `TRUNCATE `+table+`; INSERT INTO `+table+` SELECT * FROM backup_`+table); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	other.awaitReason("gone back")
	creates := r.stripe.Counters().Creates
	other.charge("new", november)
	other.charge("frozen", november)
	other.charge("late", november)
	r.eventually("what was charged is known again", func() bool {
		return r.count(`SELECT count(*) FROM events WHERE stream_id = 'customer/late' AND event_type = 'customer.billed.v1' AND (payload->>'recovered')::bool`) == 1
	})
	r.awaitState("new", november, "reserved")
	if n := r.stripe.Counters().Creates - creates; n != 0 {
		t.Errorf("%d intents were created before the database was adopted", n)
	}
	thaw() // it confirms what it had begun before; that is one success of the intent that the look adopts
	other.adopt()
	r.eventually("all are charged", func() bool {
		return r.charged("early", november) > 0 && r.charged("late", november) > 0 && r.charged("frozen", november) > 0 && r.charged("new", november) > 0
	})
	r.once(november, "early", "frozen", "new")
	if n, facts := r.charged("late", november), r.count(`SELECT count(*) FROM events WHERE stream_id = 'customer/late' AND event_type = 'customer.billed.v1'`); n != 1 || facts != 1 {
		t.Errorf("late is charged %d times, with %d facts", n, facts)
	}
	if n := r.count(`SELECT count(*) FROM environment WHERE adopted_by = 'test' AND adopted_reason <> '' AND NOT paused`); n != 1 {
		t.Error("the adoption was not recorded")
	}
	var epochs int
	if err := r.pool.QueryRow(t.Context(), `SELECT count(*) FROM environment e, backup_environment b WHERE e.epoch <> b.epoch AND e.former_epoch = b.epoch`).Scan(&epochs); err != nil || epochs != 1 {
		t.Errorf("no new epoch was drawn: %d, %v", epochs, err)
	}
}

// TestPauseOutlivesARestart: what one service has noticed, every later one
// finds written.
func TestPauseOutlivesARestart(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.owe("acme")
	r.once(november, "acme")
	if _, err := r.pool.Exec(t.Context(), `UPDATE environment SET timeline = 77`); err != nil {
		t.Fatal(err)
	}
	s.owe("other")
	s.awaitReason("promoted or recovered")
	s.stop()
	s = r.start(options{})
	s.awaitReason("promoted or recovered")
	if state := r.state("other", november); state != "reserved" {
		t.Errorf("the bill is %s", state)
	}
	s.adopt()
	r.once(november, "acme", "other")
}
