package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/projections"
)

// sent is a server-sent event, or a comment.
type sent struct {
	id, event, comment string
	fact               projections.Fact
}

// follower reads a feed.
type follower struct {
	t    *testing.T
	body *bufio.Scanner
	hang func() // hangs up
	last string // the last id
}

// follow opens a feed behind the id last; empty: where the path says.
func (i *instance) follow(path, last string) *follower {
	i.t.Helper()
	r := i.request(http.MethodGet, path, "")
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	ctx, cancel := context.WithCancel(context.Background())
	res, err := client.Do(r.WithContext(ctx))
	if err != nil {
		cancel()
		i.t.Fatal(err)
	}
	f := &follower{t: i.t, body: bufio.NewScanner(res.Body), last: last}
	f.body.Buffer(nil, 1<<20)
	f.hang = sync.OnceFunc(func() {
		cancel()
		res.Body.Close()
	})
	i.t.Cleanup(f.hang)
	if ct := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || ct != "text/event-stream" {
		f.body.Scan()
		i.t.Fatalf("%s got %d %s: %s", path, res.StatusCode, ct, f.body.Text())
	}
	return f
}

// read is the next event or comment; false when the feed has ended.
func (f *follower) read() (e sent, ok bool) {
	f.t.Helper()
	data := ""
	for some := false; f.body.Scan(); {
		line := f.body.Text()
		field, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "" && some:
			if data != "" {
				if err := json.Unmarshal([]byte(data), &e.fact); err != nil {
					f.t.Fatalf("the data %s: %v", data, err)
				}
			}
			if e.id != "" {
				f.last = e.id
			}
			return e, true
		case field == "id":
			e.id = value
		case field == "event":
			e.event = value
		case field == "":
			e.comment = value
		case field == "data":
			data = value
		}
		some = some || line != "" && field != "retry"
	}
	return e, false
}

// facts reads the next n facts.
func (f *follower) facts(n int) (facts []projections.Fact) {
	f.t.Helper()
	for len(facts) < n {
		e, ok := f.read()
		if !ok {
			f.t.Fatalf("the feed has ended after %d facts of %d", len(facts), n)
		}
		if e.comment != "" {
			continue
		}
		if e.id == "" || e.event != e.fact.Type {
			f.t.Fatalf("the event %+v", e)
		}
		facts = append(facts, e.fact)
	}
	return facts
}

// A reader comes back at any point, again and again, while two instances
// record: it gets every fact once, and those of a partition in order.
func TestFeedMissesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	i := start(t)
	other := startOn(t, i.pool) // what it records rings no bell here
	const customers, each = 40, 4
	var writers sync.WaitGroup
	for c := range customers {
		writers.Go(func() {
			by := []*instance{i, other}[c%2]
			id := fmt.Sprintf("c%d", c)
			by.register(id)
			for month := 1; month < each; month++ {
				by.send("charge-billing", chargeBody(id, fmt.Sprintf("2026-%02d", month), 5000)).receipt(t)
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	var got []projections.Fact
	for last := ""; len(got) < customers*each; {
		f := i.follow("/v1/events/stream", last)
		got = append(got, f.facts(1+random.IntN(min(30, customers*each-len(got))))...)
		last = f.last
		f.hang()
	}
	writers.Wait()
	seen, at := map[string]bool{}, map[int16]int64{}
	for _, fact := range got {
		if p := fact.Position; p.Position <= at[p.Partition] {
			t.Errorf("%s came after position %d", p, at[p.Partition])
		}
		at[fact.Position.Partition] = fact.Position.Position
		seen[fact.EventID.String()] = true
	}
	if len(seen) != i.events() {
		t.Errorf("%d facts came, the log has %d", len(seen), i.events())
	}
	var page projections.List[projections.Fact]
	i.get("/v1/events?limit=1").json(t, &page)
	if want, got := page.Items[0], i.follow("/v1/events/stream", "").facts(1)[0]; want.EventID != got.EventID || string(want.Payload) != string(got.Payload) || want.Digest != got.Digest {
		t.Errorf("the feed shows %+v, the list %+v", got, want)
	}
}

// What commits late, at a smaller position of another partition, is not passed
// over.
func TestFeedWaitsForLateCommits(t *testing.T) {
	t.Parallel()
	i := start(t)
	late, early := domain.CustomerID("late"), domain.CustomerID("early")
	tx, err := i.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	first, err := i.store.AppendTx(t.Context(), tx, eventstore.Batch{Stream: late.Stream(), Command: "test", Events: []domain.Event{
		domain.CustomerRegistered{CustomerID: late, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"}}})
	if err != nil || first[0].Err != nil {
		t.Fatal(err, first)
	}
	i.register(string(early))
	f := i.follow("/v1/events/stream", "")
	if facts := f.facts(1); facts[0].Stream != early.Stream() || facts[0].Position.Position < first[0].Recorded[0].Position {
		t.Fatalf("first came %+v, late is at %s", facts[0], first[0].Recorded[0].Place)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := i.follow("/v1/events/stream", f.last)
	for _, f := range []*follower{f, again} {
		if facts := f.facts(1); facts[0].Stream != late.Stream() {
			t.Errorf("then came %+v", facts[0])
		}
	}
}

func TestFeedFilters(t *testing.T) {
	t.Parallel()
	i := start(t, limited(Limits{Heartbeat: 50 * time.Millisecond}))
	for _, id := range []string{"alice", "bob"} {
		i.register(id)
		i.send("charge-billing", chargeBody(id, "2026-11", 5000)).receipt(t)
	}
	var list projections.List[projections.Fact]
	i.get("/v1/events?type=charge.requested.v1&limit=1").json(t, &list)
	bob := i.send("charge-billing", chargeBody("bob", "2026-12", 5000)).receipt(t)
	for path, want := range map[string]string{
		"?type=customer.registered.v1":                             "alice customer.registered.v1, bob customer.registered.v1, ",
		"?customer=bob":                                            "bob customer.registered.v1, bob charge.requested.v1, bob charge.requested.v1, ",
		"?stream=customer/bob&type=charge.requested.v1":            "bob charge.requested.v1, bob charge.requested.v1, ",
		"?type=charge.requested.v1&after=" + list.NextCursor:       "bob charge.requested.v1, bob charge.requested.v1, ",
		"?customer=bob&after=" + bob.Position.String():             "",
		"?type=customer.registered.v1&after=" + list.AsOf.Vector:   "",
		"?customer=alice&after=" + list.Items[0].Position.String(): "",
	} {
		f := i.follow("/v1/events/stream"+path, "")
		got := ""
		for {
			e, ok := f.read()
			if !ok || e.comment != "" {
				break // it has nothing more
			}
			got += strings.TrimPrefix(string(e.fact.Stream), "customer/") + " " + e.event + ", "
		}
		if got != want {
			t.Errorf("%s got %s, want %s", path, got, want)
		}
		f.hang()
	}
	// A comment takes the reader's place past what it does not want.
	f := i.follow("/v1/events/stream?type=customer.registered.v1", "")
	f.facts(2)
	behind := f.last
	i.send("charge-billing", chargeBody("alice", "2026-12", 5000)).receipt(t)
	for f.last == behind {
		if e, ok := f.read(); !ok || e.comment == "" {
			t.Fatalf("got %+v", e)
		}
	}
	if e, ok := i.follow("/v1/events/stream?type=charge.requested.v1", f.last).read(); !ok || e.comment == "" {
		t.Errorf("behind the comment's place is %+v", e)
	}
}

func TestFeedRefusals(t *testing.T) {
	t.Parallel()
	i := start(t, tokensOf(t, "reader:read:"+hashOf("r")+",sender:dispatch:"+hashOf("s")))
	for path, field := range map[string]string{
		"?after=soon": "after", "?after=AQ": "after", "?type=nothing.v1": "type", "?stream=a%20b": "stream",
		"?customer=%27": "customer", "?customer=bob&stream=customer/bob": "customer", "?limit=5": "limit",
	} {
		if p := i.get("/v1/events/stream"+path, "Authorization", "Bearer r").problem(t); p.Status != 400 || !p.names(field) {
			t.Errorf("%s got %+v", path, p)
		}
	}
	if p := i.get("/v1/events/stream", "Authorization", "Bearer r", "Last-Event-ID", "x").problem(t); p.Status != 400 || !p.names("Last-Event-ID") {
		t.Errorf("a bad Last-Event-ID got %+v", p)
	}
	if a := i.get("/v1/events/stream"); a.problem(t).Status != http.StatusUnauthorized {
		t.Errorf("without a token got %s", a.body)
	}
	if a := i.get("/v1/events/stream", "Authorization", "Bearer s"); a.problem(t).Status != http.StatusForbidden {
		t.Errorf("without the scope got %s", a.body)
	}
}

func TestFeedTakesSoManyReaders(t *testing.T) {
	t.Parallel()
	i := start(t, limited(Limits{Readers: 2}))
	i.register("alice")
	first, second := i.follow("/v1/events/stream", ""), i.follow("/v1/events/stream", "")
	first.facts(1)
	second.facts(1)
	if a := i.get("/v1/events/stream"); a.problem(t).Code != "too_many_readers" || a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("the third got %d %s", a.status, a.body)
	}
	first.hang()
	eventually(t, "a place is free", func() bool { return i.readers.Load() < 2 })
	i.follow("/v1/events/stream", "").facts(1)
}

// A reader that takes nothing is cut off. Until then it holds no connection to
// the database, and others are served; then it comes back and has missed
// nothing.
func TestFeedCutsSlowReadersOff(t *testing.T) {
	t.Parallel()
	i := start(t, limited(Limits{Write: 4 * time.Second}))
	const facts = 200
	i.register("alice")
	for range facts / 20 {
		outcome(t, i.dispatcher, "alice", "2026-11", func(c domain.CustomerID, p domain.Period) (events []domain.Event) {
			for range 20 {
				events = append(events, domain.ChargeUnknown{ChargeReport: domain.ChargeReport{
					CustomerID: c, BillingPeriod: p, Attempt: 1, Start: 1, Reason: strings.Repeat("long ", 20_000)}})
			}
			return events
		})
	}
	conn := i.raw(t)
	fmt.Fprint(conn, "GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
	eventually(t, "it waits for its reader", func() bool { return i.readers.Load() == 1 && i.pool.Stat().AcquiredConns() == 0 })
	other := i.follow("/v1/events/stream", "")
	all := other.facts(facts + 1)
	eventually(t, "the slow reader is cut off", func() bool { return i.readers.Load() == 1 })
	if metrics := i.get("/metrics").body; !strings.Contains(metrics, "billonce_feed_slow_readers_total 1") || !strings.Contains(metrics, "billonce_feed_readers 1") {
		t.Errorf("the metrics tell nothing of it")
	}
	// What has arrived is whole up to the last blank line.
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{t: t, body: bufio.NewScanner(res.Body)}
	f.body.Buffer(nil, 1<<20)
	got := 0
	for {
		e, ok := f.read()
		if !ok {
			break
		}
		if e.fact.EventID != all[got].EventID {
			t.Fatalf("fact %d is %s", got, e.fact.Position)
		}
		got++
	}
	if got == 0 || got > facts {
		t.Fatalf("%d facts arrived before it was cut off", got)
	}
	for n, fact := range i.follow("/v1/events/stream", f.last).facts(facts + 1 - got) {
		if fact.EventID != all[got+n].EventID {
			t.Fatalf("behind %d facts came %s", got+n, fact.Position)
		}
	}
}

// The database's sessions are ended under a feed: it goes on by itself.
func TestFeedOutlivesItsDatabaseSessions(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.register("alice")
	f := i.follow("/v1/events/stream", "")
	f.facts(1)
	for n := range 5 {
		eventually(t, "the sessions are ended", func() bool {
			_, err := i.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
			return err == nil // or this one was one of them
		})
		id := fmt.Sprintf("c%d", n)
		eventually(t, "a command is taken", func() bool {
			return i.send("register-customer", fmt.Sprintf(`{"customer_id":%q,"stripe_customer_id":"cus_%s","payment_method_id":"pm_card"}`, id, id)).status == 200
		})
		if facts := f.facts(1); facts[0].Stream != domain.CustomerID(id).Stream() {
			t.Errorf("after the cut came %+v", facts[0])
		}
	}
}

func TestFeedEndsWithTheService(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.register("alice")
	f := i.follow("/v1/events/stream", "")
	f.facts(1)
	begun := time.Now()
	i.stop()
	if _, ok := f.read(); ok || time.Since(begun) > 2*time.Second {
		t.Errorf("it ended after %s", time.Since(begun))
	}
}

// A cursor of a log that had more, as one that was restored since, is refused:
// whoever went on from there would miss what comes next.
func TestFeedRefusesACursorAheadOfTheLog(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.fill(3)
	f := i.follow("/v1/events/stream", "")
	f.facts(6)
	t.Run("another log", func(t *testing.T) {
		i := start(t)
		i.register("alice")
		if p := i.get("/v1/events/stream", "Last-Event-ID", f.last).problem(t); p.Status != http.StatusConflict || p.Code != "ahead_of_log" {
			t.Errorf("got %+v", p)
		}
		if facts := i.follow("/v1/events/stream?after=1-1", "").facts(0); len(facts) != 0 { // a place is taken as it is
			t.Errorf("got %+v", facts)
		}
	})
}

// However many readers there are, and however slow the database: they leave
// connections to others.
func TestFeedLeavesConnectionsToOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.DSN(t), feedReads+3)
	i := startOn(t, pool)
	i.register("alice")
	for range 20 {
		i.follow("/v1/events/stream", "").facts(1)
	}
	tx, err := pgtest.Pool(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `LOCK TABLE events IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "readers wait for the table", func() bool {
		i.Heard(1) // all of them are to look
		return pool.Stat().AcquiredConns() == feedReads
	})
	for range 50 {
		i.Heard(1)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := pool.Exec(ctx, `SELECT 1`); err != nil {
			t.Errorf("nobody else gets a connection: %v", err)
		}
		cancel()
		if n := pool.Stat().AcquiredConns(); n > feedReads {
			t.Fatalf("readers hold %d connections", n)
		}
	}
}
