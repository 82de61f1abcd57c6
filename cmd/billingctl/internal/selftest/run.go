package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// Bounds of a run, on a watch that does not count standstills of the machine.
const (
	struckWithin  = 20 * time.Second // then the point is held for never reached
	decidedWithin = 20 * time.Second // then a step goes on all the same
	restWithin    = 4 * time.Minute  // then a bill that is still open is lost
	askWithin     = 10 * time.Second // of one service, before another is asked
	adoptEvery    = 300 * time.Millisecond
	tick          = 20 * time.Millisecond
	quietFor      = 300 * time.Millisecond // all wait for time to pass: it does
	stillFor      = 8 * time.Second        // much longer than a lease: the same
	attempts      = 3                      // of a bill, before it is settled outside Stripe
)

// tally counts what a run did.
type tally struct {
	Kills, Freezes, Jumps, Restores int
	Charges, Requests               int
}

// run is one run on its way.
type run struct {
	h        *house
	s        script
	stand    parts.StandIn
	database string
	replicas []*replica
	conn     *pgx.Conn
	asking   sync.WaitGroup
	tally    tally
	leaps    []leap
	settling bool      // nobody stays frozen any more
	adoptAt  time.Time // when to ask next; zero: there was no restore
}

// play plays a script to its end and judges it. An error says that the run
// could not be carried through, which says nothing about the service.
func (h *house) play(ctx context.Context, stand parts.StandIn, s script, broken map[string]string, o Options) (verdict, tally, error) {
	r := &run{h: h, s: s, stand: stand, database: fmt.Sprintf("run_%d", s.seed)}
	defer r.clear()
	e, err := r.month(ctx, broken, o.IgnoreKeys)
	if err != nil {
		return verdict{}, r.tally, err
	}
	v := judge(e)
	if !v.right() || o.Keep {
		h.keepRequests(s.seed, e.requests)
	}
	return v, r.tally, nil
}

// clear ends and removes what the run had.
func (r *run) clear() {
	for _, p := range r.replicas {
		p.end()
	}
	r.asking.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r.disconnect()
	_ = r.h.drop(ctx, r.database) // the server goes with everything in it
}

func (r *run) month(ctx context.Context, broken map[string]string, forgetful bool) (e evidence, err error) {
	if err := r.h.clone(ctx, r.database); err != nil {
		return e, err
	}
	// A house of its own, not a copy of the template's that nobody has adopted.
	if _, err := r.exec(ctx, `DELETE FROM environment`); err != nil {
		return e, err
	}
	if err := r.stand.Call(ctx, http.MethodPost, "/control/reset", struct{}{}, nil); err != nil {
		return e, err
	}
	if err := r.stand.Call(ctx, http.MethodPost, "/control/settings", map[string]bool{"ignore_keys": forgetful}, nil); err != nil {
		return e, err
	}
	if len(r.s.faults) > 0 {
		if err := r.stand.Call(ctx, http.MethodPost, "/control/faults", r.s.faults, nil); err != nil {
			return e, err
		}
	}
	for i, lives := range r.s.replicas {
		if len(lives) == 0 {
			continue
		}
		p := r.h.replica(fmt.Sprintf("run-%d-%c", r.s.seed, 'a'+i), r.stand, r.h.server.DSN(r.database), broken)
		p.lives = lives
		r.replicas = append(r.replicas, p)
		if !lives[0].held {
			if err := p.start(ctx, lives[0].crash); err != nil {
				return e, err
			}
		}
	}
	if err := r.stand.SetClock(ctx, clockDue); err != nil {
		return e, err
	}
	for _, st := range r.s.steps {
		if err := r.take(ctx, st); err != nil {
			return e, fmt.Errorf("%s: %w", st.do, err)
		}
	}
	return r.settle(ctx)
}

// take takes one step.
func (r *run) take(ctx context.Context, st step) error {
	if st.when != atOnce {
		if err := r.waitFor(ctx, st.when); err != nil {
			return err
		}
	}
	if err := r.pause(ctx, st.after); err != nil {
		return err
	}
	switch st.do {
	case jumpClock:
		return r.jump(ctx, st.jump)
	case forget:
		_, err := r.exec(ctx, `DELETE FROM processor_tokens WHERE processor = ANY($1)`, st.names)
		return err
	case again:
		for _, c := range r.h.customers {
			if slices.Contains(st.names, c.CustomerID) {
				r.ask(ctx, "charge-billing", map[string]any{"customer_id": c.CustomerID, "billing_period": period, "amount_minor": c.AmountMinor, "currency": c.Currency}, "")
			}
		}
	case settleBills:
		rows, err := r.rows(ctx)
		if err != nil {
			return err
		}
		for _, b := range rows {
			if b.State == "declined" {
				r.settleBill(ctx, b)
			}
		}
		r.asking.Wait()
	case calm:
		return r.stand.ClearFaults(ctx)
	case startOne:
		return r.wake(ctx, st.which)
	case killOne:
		if st.which < len(r.replicas) {
			if p := r.replicas[st.which]; p.child != nil && !p.dead() {
				_ = p.child.Kill()
			}
		}
	case thaw:
		r.thaw()
	case restore:
		return r.restore(ctx)
	case rest:
	}
	return nil
}

// wake starts a replica whose next life a step was to start.
func (r *run) wake(ctx context.Context, which int) error {
	p := r.replicas[which]
	if p.child != nil {
		if !p.dead() || p.life+1 >= len(p.lives) {
			return nil
		}
		p.life++
	}
	return p.start(ctx, p.lives[p.life].crash)
}

func (r *run) jump(ctx context.Context, by time.Duration) error {
	r.tally.Jumps++
	r.leaps = append(r.leaps, leap{time.Now(), by})
	return r.stand.Call(ctx, http.MethodPost, "/control/clock", map[string]string{"advance": by.String()}, nil)
}

// thaw lets whoever was stopped go on.
func (r *run) thaw() {
	for _, p := range r.replicas {
		if p.child == nil || p.dead() {
			continue
		}
		if p.frozen() {
			r.tally.Freezes++
		}
		_ = p.child.Signal(syscall.SIGCONT)
		p.stopped = false
		p.lives = append(p.lives[:p.life:p.life], life{}) // it does not stop again
	}
}

// restore takes the database back to before the month. Whoever is frozen keeps
// what it knew; everybody else is started anew. From then on an operator asks
// again and again for the database to be adopted.
func (r *run) restore(ctx context.Context) error {
	r.tally.Restores++
	var identity string
	err := r.onDatabase(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT row_to_json(e)::text FROM environment e`).Scan(&identity)
	})
	if err != nil {
		return fmt.Errorf("read the database's identity: %w", err)
	}
	for _, p := range r.replicas {
		if p.child != nil && !p.frozen() {
			_ = p.child.Kill()
		}
	}
	r.disconnect()
	if err := r.h.drop(ctx, r.database); err != nil {
		return err
	}
	if err := r.h.clone(ctx, r.database); err != nil {
		return err
	}
	if _, err := r.exec(ctx, `DELETE FROM environment`); err != nil {
		return err
	}
	if _, err := r.exec(ctx, `INSERT INTO environment SELECT * FROM json_populate_record(NULL::environment, $1::json)`, identity); err != nil {
		return err
	}
	r.adoptAt = time.Now()
	return nil
}

// adopt asks every service to take the restored database for its own. It is
// refused until Stripe has been looked at, and once there is nothing to adopt.
func (r *run) adopt(ctx context.Context) {
	if r.adoptAt.IsZero() || time.Now().Before(r.adoptAt) {
		return
	}
	r.adoptAt = time.Now().Add(adoptEvery)
	for _, c := range r.addresses() {
		r.asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, _ = c.Post(ctx, "/v1/environment/adopt", []byte(`{"reason":"restored from before the month"}`))
		})
	}
}

// waitFor waits for a condition, or until it is not worth waiting for.
func (r *run) waitFor(ctx context.Context, c condition) error {
	watch := parts.NewStopwatch()
	for {
		switch c {
		case struck:
			p := r.replicas[0]
			if p.child == nil || p.dead() || p.frozen() || watch.Look() > struckWithin {
				return nil
			}
			if under, err := r.underWay(ctx); err != nil || !under {
				return err // nobody will reach the point any more
			}
		case decided:
			if under, err := r.underWay(ctx); err != nil || !under || watch.Look() > decidedWithin {
				return err
			}
			if err := r.hurry(ctx); err != nil {
				return err
			}
		}
		if err := r.pause(ctx, 2*tick); err != nil {
			return err
		}
	}
}

// underWay reports whether a bill is on its way.
func (r *run) underWay(ctx context.Context) (bool, error) {
	rows, err := r.rows(ctx)
	under := len(rows) < bills
	for _, b := range rows {
		under = under || slices.Contains([]string{"reserved", "sending", "closing", "held"}, b.State)
	}
	return under, err
}

// pause lets time go by, in which the dead are started again.
func (r *run) pause(ctx context.Context, d time.Duration) error {
	for until := time.Now().Add(d); ; {
		if err := r.revive(ctx); err != nil {
			return err
		}
		left := time.Until(until)
		if left <= 0 {
			return context.Cause(ctx)
		}
		if err := parts.Pause(ctx, min(left, tick)); err != nil {
			return err
		}
	}
}

// revive starts those again that have died, each when its script says.
func (r *run) revive(ctx context.Context) error {
	r.adopt(ctx)
	for _, p := range r.replicas {
		if p.child != nil && r.settling {
			_ = p.child.Signal(syscall.SIGCONT) // a point may be reached late
		}
		if p.child == nil || !p.dead() {
			continue
		}
		if p.ended.IsZero() {
			p.ended = time.Now()
			p.deaths++
			r.tally.Kills++
		}
		next := life{after: 200 * time.Millisecond}
		if p.life+1 < len(p.lives) {
			next = p.lives[p.life+1]
		}
		if next.held || time.Since(p.ended) < next.after {
			continue
		}
		p.life, p.stopped, p.ended = p.life+1, false, time.Time{}
		if err := p.start(ctx, next.crash); err != nil {
			return err
		}
	}
	return nil
}

// ask dispatches a command in the background, through whoever answers. A
// refusal is an answer.
func (r *run) ask(ctx context.Context, command string, body map[string]any, key string) {
	raw, err := json.Marshal(body)
	if err != nil {
		return
	}
	addresses := r.addresses()
	r.asking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		for _, c := range addresses {
			if _, _, err := c.Command(ctx, command, key, "", raw); err == nil {
				return
			}
		}
	})
}

// addresses are clients of all services that are up.
func (r *run) addresses() (up []*client.Client) {
	for _, p := range r.replicas {
		if !p.alive() {
			continue
		}
		address, err := os.ReadFile(p.portFile())
		if err != nil {
			continue
		}
		if c, err := client.New("http://"+strings.TrimSpace(string(address)), r.h.token); err == nil {
			up = append(up, c)
		}
	}
	return up
}

func (r *run) settleBill(ctx context.Context, b row) {
	r.ask(ctx, "settle-billing", map[string]any{"customer_id": b.Customer, "billing_period": period, "reference": "wire " + b.Customer}, "wire-"+b.Customer)
}

// settle brings the run to rest: the stand-in has no faults any more, everybody
// goes on, an operator sees to what was declined, and time goes by.
func (r *run) settle(ctx context.Context) (e evidence, err error) {
	if err := r.stand.ClearFaults(ctx); err != nil {
		return e, err
	}
	r.thaw()
	r.settling = true
	for _, p := range r.replicas {
		p.lives = append(slices.Clip(p.lives[:min(p.life+1, len(p.lives))]), life{}) // nobody dies any more, once started again
		if p.child == nil {
			if err := p.start(ctx, ""); err != nil {
				return e, err
			}
		}
	}
	open, err := r.toRest(ctx)
	if err != nil {
		return e, err
	}
	e, err = r.account(ctx, open)
	if err != nil || open != "" {
		return e, err
	}
	e.replayed, err = r.replay(ctx)
	return e, err
}

// toRest waits until every bill has ended, and says what is open if that takes
// too long.
func (r *run) toRest(ctx context.Context) (open string, err error) {
	watch, still := parts.NewStopwatch(), parts.NewStopwatch()
	jumps := []time.Duration{16 * time.Minute, 25 * time.Hour, 25 * time.Hour, 48 * time.Hour, 16 * time.Minute}
	for last := ""; ; {
		rows, err := r.rows(ctx)
		if err != nil {
			return "", err
		}
		var waiting, stand []string
		quiet := len(rows) == bills
		for _, b := range rows {
			switch b.State {
			case "succeeded", "void":
				continue
			case "declined", "rejected":
				if b.Attempt < attempts {
					r.ask(ctx, "retry-charge", map[string]any{"customer_id": b.Customer, "billing_period": period, "attempt": b.Attempt + 1}, "")
				} else {
					r.settleBill(ctx, b)
				}
			}
			waiting = append(waiting, fmt.Sprintf("%s is %s, attempt %d (%s)", b.Customer, b.State, b.Attempt, b.Reason))
			stand = append(stand, fmt.Sprintf("%s/%d", b.Customer, b.Attempt))
			quiet = quiet && b.waitsForTime()
		}
		r.asking.Wait()
		if len(rows) == bills && len(waiting) == 0 {
			return "", nil
		}
		if now := fmt.Sprint(len(rows), quiet, stand); now != last {
			last = now
			still.Restart()
		}
		if watch.Look() > restWithin {
			return fmt.Sprintf("the run has not come to rest: %d of %d bills are on record; %s", len(rows), bills, strings.Join(waiting, "; ")), nil
		}
		if patience := map[bool]time.Duration{true: quietFor, false: stillFor}[quiet]; len(rows) == bills && still.Look() > patience {
			if err := r.jump(ctx, jumps[0]); err != nil {
				return "", err
			}
			if len(jumps) > 1 {
				jumps = jumps[1:]
			}
			still.Restart()
		}
		if err := r.hurry(ctx); err != nil {
			return "", err
		}
		if err := r.pause(ctx, 4*tick); err != nil {
			return "", err
		}
	}
}

// hurry cuts back-offs short: they are on the database's clock, which no run can
// move. Leases are left alone.
func (r *run) hurry(ctx context.Context) error {
	_, err := r.exec(ctx, `UPDATE billing_records SET next_try_at = clock_timestamp() + interval '150 milliseconds'
		WHERE next_try_at > clock_timestamp() + interval '400 milliseconds' AND next_try_at < 'infinity' AND state IN ('reserved', 'sending', 'unknown', 'held', 'closing', 'action_required')`)
	return err
}

// account asks both sides what happened.
func (r *run) account(ctx context.Context, open string) (e evidence, err error) {
	e.customers, e.open, e.leaps = r.h.customers, open, r.leaps
	if e.rows, err = r.rows(ctx); err != nil {
		return e, err
	}
	if err := r.again(ctx, func() error { return r.books(ctx, &e) }); err != nil && open == "" {
		return e, err
	}
	if e.movements, err = r.stand.Ledger(ctx, ""); err != nil {
		return e, err
	}
	if e.counters, err = r.stand.Counters(ctx); err != nil {
		return e, err
	}
	e.requests, err = r.requests(ctx)
	r.tally.Charges, r.tally.Requests = len(e.movements), len(e.requests)
	return e, err
}

func (r *run) requests(ctx context.Context) ([]request, error) {
	var answer struct {
		Requests []request `json:"requests"`
	}
	err := r.stand.Call(ctx, http.MethodGet, "/control/requests?limit=1000000", nil, &answer)
	return answer.Requests, err
}

// books reads the service's own.
func (r *run) books(ctx context.Context, e *evidence) error {
	c, err := r.someone(ctx)
	if err != nil {
		return err
	}
	if err := caughtUp(ctx, c, askWithin); err != nil {
		return err
	}
	var charges struct {
		Items []charge `json:"items"`
	}
	if err := c.Read(ctx, "/v1/charges", url.Values{"period": {period}, "limit": {"500"}}, &charges); err != nil {
		return fmt.Errorf("read the service's books: %w", err)
	}
	var totals struct {
		Totals []struct {
			Currency string `json:"currency"`
			Taken    struct {
				Minor int64 `json:"minor"`
			} `json:"taken"`
		} `json:"totals"`
	}
	if err := c.Read(ctx, "/v1/runs/"+period, nil, &totals); err != nil {
		return fmt.Errorf("read the service's books: %w", err)
	}
	e.charges, e.taken = charges.Items, map[string]int64{}
	for _, t := range totals.Totals {
		e.taken[t.Currency] = t.Taken.Minor
	}
	return nil
}

// again asks until there is an answer: a point may be reached late, and take a
// service with it that is being asked.
func (r *run) again(ctx context.Context, ask func() error) (err error) {
	for range 10 {
		if err = ask(); err == nil || ctx.Err() != nil {
			return err
		}
		if err := r.pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	return err
}

// someone is a client of a service that is up.
func (r *run) someone(ctx context.Context) (*client.Client, error) {
	var up []*client.Client
	err := parts.AwaitEvery(ctx, tick, upWithin, func() (bool, error) {
		up = r.addresses()
		return len(up) > 0, r.revive(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("no billingd comes up: %w", err)
	}
	return up[0], nil
}

// replay takes the tokens away from every processor that can lead to a call,
// and says what came of it: nothing may.
func (r *run) replay(ctx context.Context) (came []string, err error) {
	count := func() (posts, facts int, err error) {
		all, err := r.requests(ctx)
		if err != nil {
			return 0, 0, err
		}
		for _, q := range all {
			if q.Method == http.MethodPost {
				posts++
			}
		}
		err = r.query(ctx, `SELECT count(*) FROM events`, &facts)
		return posts, facts, err
	}
	posts, facts, err := count()
	if err != nil {
		return nil, err
	}
	if _, err := r.exec(ctx, `DELETE FROM processor_tokens WHERE processor IN ('billing', 'preflight', 'schedule')`); err != nil {
		return nil, err
	}
	var back bool
	err = parts.AwaitEvery(ctx, tick, upWithin, func() (bool, error) {
		err := r.query(ctx, `SELECT count(DISTINCT processor) = 3 FROM processor_tokens WHERE processor IN ('billing', 'preflight', 'schedule') AND position > 0`, &back)
		return back, errors.Join(err, r.revive(ctx))
	})
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	err = r.again(ctx, func() error {
		c, err := r.someone(ctx)
		if err != nil {
			return err
		}
		return caughtUp(ctx, c, askWithin)
	})
	if err != nil {
		return nil, err
	}
	postsNow, factsNow, err := count()
	if postsNow != posts {
		came = append(came, fmt.Sprintf("a replay of the processors led to %d POSTs", postsNow-posts))
	}
	if factsNow != facts {
		came = append(came, fmt.Sprintf("a replay of the processors led to %d facts", factsNow-facts))
	}
	return came, err
}

// rows reads where the bills stand. One that the look found paid before it was
// asked for has a fact and no row.
func (r *run) rows(ctx context.Context) (rows []row, err error) {
	err = r.onDatabase(ctx, func(conn *pgx.Conn) error {
		found, err := conn.Query(ctx, `SELECT customer_id, state, attempt, coalesce(outcome->>'reason', '') FROM billing_records WHERE billing_period = $1
			UNION ALL
			SELECT payload->>'customer_id', 'succeeded', 0, 'recovered' FROM events e
			WHERE event_type = 'customer.billed.v1' AND payload->>'billing_period' = $1
				AND NOT EXISTS (SELECT FROM billing_records r WHERE r.customer_id = e.payload->>'customer_id' AND r.billing_period = $1)
			ORDER BY 1`, period)
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(found, pgx.RowToStructByPos[row])
		return err
	})
	return rows, err
}

func (r *run) query(ctx context.Context, sql string, into any) error {
	return r.onDatabase(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, sql).Scan(into) })
}

func (r *run) exec(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = r.onDatabase(ctx, func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, sql, args...)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// onDatabase does something on the run's database, which is connected to once.
func (r *run) onDatabase(ctx context.Context, do func(*pgx.Conn) error) error {
	if r.conn == nil {
		conn, err := pgx.Connect(ctx, r.h.server.DSN(r.database))
		if err != nil {
			return err
		}
		r.conn = conn
	}
	return do(r.conn)
}

func (r *run) disconnect() {
	if r.conn != nil {
		r.conn.Close(context.Background())
		r.conn = nil
	}
}

// keepRequests writes down what came to the stand-in in a run that was wrong, a
// line each.
func (h *house) keepRequests(seed uint64, requests []request) {
	var lines bytes.Buffer
	out := json.NewEncoder(&lines)
	for _, q := range requests {
		_ = out.Encode(q) // plain values
	}
	_ = os.WriteFile(h.folder.Path(fmt.Sprintf("run-%d-stripe.log", seed)), lines.Bytes(), 0o600) // the verdict is told all the same
}

// forgetLogs removes the logs of a run that was right.
func (h *house) forgetLogs(seed uint64) {
	logs, err := filepath.Glob(h.folder.Path(fmt.Sprintf("run-%d-*.log", seed)))
	if err != nil {
		return
	}
	for _, path := range logs {
		_ = os.Remove(path)
	}
}
