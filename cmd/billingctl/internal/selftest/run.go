package selftest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// Bounds of a run, on a watch that does not count standstills of the machine.
const (
	struckWithin  = 20 * time.Second // then the point is held for never reached
	decidedWithin = 20 * time.Second // then a step goes on all the same
	restWithin    = 4 * time.Minute  // then a bill that is still open is lost
	askWithin     = 10 * time.Second // of one service, before another is asked
	adoptEvery    = 300 * time.Millisecond
	tick          = 20 * time.Millisecond  // whether somebody has died
	look          = 100 * time.Millisecond // how the bills stand; it takes work of the database
	quietFor      = 300 * time.Millisecond // all wait for time to pass: it does
	stillFor      = 8 * time.Second        // much longer than a lease: the same
	attempts      = 3                      // of a bill, before it is settled outside Stripe
)

// tally counts what a run did.
type tally struct {
	Kills, Freezes, Jumps, Restores int
	Charges, Requests               int
	Orphans                         int           // bills that were in the hands of a service that was killed
	Slowest                         time.Duration // that one of them waited for another service to take it up

	Points map[string]int // at which services died or froze, as they said themselves
	Faults map[string]int // that requests really met, as the stand-in tells
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
	orphans  []orphan
	lookAt   time.Time // at them again
	settling bool      // nobody stays frozen any more
	adoptAt  time.Time // when to ask next; zero: there was no restore
}

// play plays a script to its end and judges it. An error says that the run
// could not be carried through, which says nothing about the service.
func (h *house) play(ctx context.Context, stand parts.StandIn, s script, broken map[string]string, o Options) (verdict, tally, error) {
	r := &run{h: h, s: s, stand: stand, database: fmt.Sprintf("run_%d", s.seed)}
	defer func() { r.clear(ctx) }()
	e, err := r.month(ctx, broken, o.IgnoreKeys)
	r.count(e.requests)
	if err != nil {
		return verdict{}, r.tally, err
	}
	v := judge(e)
	if !v.right() || o.Keep {
		h.keepRequests(s.seed, e.requests)
	}
	return v, r.tally, nil
}

// clear ends and removes what the run had. The database of a series that was
// interrupted goes with its server.
func (r *run) clear(ctx context.Context) {
	for _, p := range r.replicas {
		p.end()
	}
	r.asking.Wait()
	r.disconnect()
	if ctx.Err() != nil {
		return
	}
	r.h.dropping.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_ = r.h.drop(ctx, r.database) // the server goes with everything in it
	})
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
		p.lives, p.charges = lives, r.s.charges
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
	// Not before the month is decided: on a busy machine the faults would be gone
	// before anybody has met them.
	if err := r.waitFor(ctx, decided); err != nil {
		return e, fmt.Errorf("the month: %w", err)
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
	r.orphans = nil
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
