package selftest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/billonce/billonce/sagas/crashpoint"
)

// bills of a run: one a customer.
const bills = 24

// script is everything that a run does, drawn from its seed alone.
type script struct {
	seed     uint64
	plot     string
	charges  bool      // the services take money by legacy Charges
	replicas [2][]life // the lives of the two replicas; the last one lasts
	faults   []fault   // of the stand-in, armed before the month begins
	steps    []step
}

// life is one life of a billingd.
type life struct {
	crash string        // how it is armed: BILLING_CRASH, or empty
	after time.Duration // how long nobody starts it, once the one before has ended
	held  bool          // a step starts it
}

// fault is a fault as the stand-in's control API takes it.
type fault struct {
	Match match    `json:"match,omitzero"`
	Kind  string   `json:"fault,omitempty"`
	Times int      `json:"times,omitempty"`
	Delay string   `json:"delay,omitempty"`
	Code  string   `json:"code,omitempty"`
	Seed  uint64   `json:"seed,omitempty"`
	Rate  float64  `json:"rate,omitempty"`
	Kinds []string `json:"faults,omitempty"`
}

type match struct {
	Method   string `json:"method,omitempty"`
	Path     string `json:"path,omitempty"`
	Customer string `json:"customer,omitempty"`
}

// step is something that happens in the month, after the step before.
type step struct {
	when  condition     // waited for first, for a bounded time
	after time.Duration // then this long
	do    action
	jump  time.Duration // of jumpClock
	names []string      // processors of forget, customers of again
	which int           // the replica of start and kill
}

type condition string

const (
	atOnce  condition = ""
	struck  condition = "struck"  // the first replica has been killed or stopped by its point
	decided condition = "decided" // no bill is on its way: each has ended, or rests for somebody
	closed  condition = "closed"  // the same, and none rests declined: what was settled has been closed
)

type action string

const (
	jumpClock   action = "jump"    // the business clock, forward
	forget      action = "forget"  // the tokens of processors
	again       action = "again"   // charge-billing over HTTP for some, whatever the saga does
	settleBills action = "settle"  // every declined bill, as paid outside Stripe
	calm        action = "calm"    // the stand-in has no faults any more
	startOne    action = "start"   // a replica whose life is held
	killOne     action = "kill"    // with kill -9, wherever it is
	thaw        action = "thaw"    // whoever was stopped goes on
	restore     action = "restore" // the database goes back to before the month
	rest        action = "rest"
)

// The plots of a series, taken in turn. Each is one way to lose or double a
// bill, in a place and at a moment that the seed draws.
var plots = []struct {
	name  string
	write func(*script, *rand.Rand)
}{
	{"kills", kills},
	{"lost id", lostID},
	{"frozen", frozen},
	{"settled", settled},
	{"lost create", lostCreate},
	{"stored 500", stored500},
	{"replay", replay},
	{"faults", faultsAlone},
	{"restore", restored},
	{"late charge", lateCharge},
}

func plotNames() (names []string) {
	for _, p := range plots {
		names = append(names, p.name)
	}
	return names
}

// write draws the script of a seed. Only narrows the plots; empty: all.
func write(seed uint64, only []string) script {
	s := script{seed: seed}
	r := rand.New(rand.NewPCG(seed, 0x5e1f))
	var among []int
	for i, p := range plots {
		if slices.Contains(only, p.name) || len(only) == 0 {
			among = append(among, i)
		}
	}
	p := plots[among[seed%uint64(len(among))]]
	s.plot = p.name
	p.write(&s, r)
	return s
}

// The points at which processes die in these plots, by what leads past them.
var (
	everyMonth = pointsOf("due.", "saga.", "preflight.", "claim.", "create.", "intent.", "confirm.", "outcome.")
	inTrouble  = pointsOf("find.", "start.", "adopt.", "cancel.", "close.")
)

func pointsOf(prefixes ...string) (names []string) {
	for _, p := range crashpoint.Points {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(p.Name, prefix) }) {
			names = append(names, p.Name)
		}
	}
	return names
}

// pointOf draws a point and how often it is passed before.
func pointOf(r *rand.Rand) string {
	if r.IntN(4) == 0 {
		return fmt.Sprintf("%s:%d", pick(r, inTrouble), 1+r.IntN(2))
	}
	name := pick(r, everyMonth)
	most := 2 // points passed once a transaction
	if strings.HasPrefix(name, "create.") || strings.HasPrefix(name, "intent.") || strings.HasPrefix(name, "confirm.") || strings.HasPrefix(name, "outcome.") {
		most = 16 // once a bill
	}
	return fmt.Sprintf("%s:%d", name, 1+r.IntN(most))
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func millis(r *rand.Rand, least, most int) time.Duration {
	return time.Duration(least+r.IntN(most-least+1)) * time.Millisecond
}

// jumps of the business clock: past a key's life, past the quiet periods.
var jumps = []time.Duration{16 * time.Minute, 6 * time.Hour, 25 * time.Hour, 26 * time.Hour}

// kills ends both replicas where the seed says, some of them more than once.
func kills(s *script, r *rand.Rand) {
	s.replicas[0] = []life{{crash: pointOf(r)}, {crash: pointOf(r), after: millis(r, 0, 600)}, {after: millis(r, 0, 2600)}}
	s.replicas[1] = []life{{crash: pointOf(r)}, {after: millis(r, 0, 1500)}}
	if r.IntN(2) == 0 {
		s.replicas[1] = nil
	}
	s.noise(r, 0.15)
	if r.IntN(2) == 0 {
		s.steps = append(s.steps, step{after: millis(r, 100, 2000), do: jumpClock, jump: pick(r, jumps)})
	}
	if r.IntN(3) == 0 {
		s.steps = append(s.steps, step{after: millis(r, 0, 800), do: killOne, which: r.IntN(2)})
	}
	s.someAgain(r)
}

// lostID kills a worker that has charged and not written it down; another one
// takes over when Stripe has forgotten every key.
func lostID(s *script, r *rand.Rand) {
	points := []string{"confirm.answered", "outcome.committing", "confirm.answered"}
	s.replicas[0] = []life{{crash: fmt.Sprintf("%s:%d", pick(r, points), 1+r.IntN(6))}, {held: true}}
	s.replicas[1] = []life{{}} // up before it happens: its first look has not seen the charge
	s.steps = append(s.steps,
		step{when: struck, do: jumpClock, jump: pick(r, []time.Duration{25 * time.Hour, 26 * time.Hour})},
		step{when: decided, do: startOne, which: 0})
}

// frozen stops a worker for longer than its lease. Another one takes its bills
// over, and then it goes on where it was.
func frozen(s *script, r *rand.Rand) {
	s.replicas[0] = []life{{crash: pointOf(r) + ":stop"}}
	s.replicas[1] = []life{{held: true}}
	s.steps = append(s.steps, step{when: struck, do: startOne, which: 1})
	if r.IntN(3) > 0 {
		s.steps = append(s.steps, step{after: millis(r, 0, 2500), do: jumpClock, jump: pick(r, jumps)})
	}
	s.steps = append(s.steps, step{when: decided, after: millis(r, 0, 300), do: thaw}, step{after: 300 * time.Millisecond, do: rest})
	s.noise(r, 0.1)
	s.someAgain(r)
}

// settled lets bills be paid outside Stripe after a decline, while a worker that
// is about to confirm one of them is frozen. It wakes up when Stripe has
// forgotten the key, and the card is good again.
func settled(s *script, r *rand.Rand) {
	s.replicas[0] = []life{{crash: fmt.Sprintf("confirm.sending:%d:stop", 1+r.IntN(4))}}
	s.replicas[1] = []life{{held: true}}
	s.faults = append(s.faults, fault{Match: match{Method: "POST", Path: "/v1/payment_intents/*/confirm"}, Kind: "decline", Code: "insufficient_funds", Times: -1})
	s.steps = append(s.steps,
		step{when: struck, do: startOne, which: 1},
		step{when: decided, do: settleBills},
		step{when: closed, do: jumpClock, jump: 25 * time.Hour},
		step{do: calm},
		step{do: thaw},
		step{after: 700 * time.Millisecond, do: rest})
	if r.IntN(2) == 0 { // the one that cancels dies at it
		s.replicas[1] = []life{{held: true, crash: fmt.Sprintf("%s:%d", pick(r, pointsOf("cancel.", "close.")), 1+r.IntN(3))}, {after: millis(r, 0, 500)}}
	}
}

// lostCreate loses creates: their answers, their ids, and the keys they had.
func lostCreate(s *script, r *rand.Rand) {
	s.replicas[0] = []life{{crash: fmt.Sprintf("%s:%d", pick(r, pointsOf("create.", "intent.")), 1+r.IntN(12))}, {after: millis(r, 0, 2600)}}
	s.replicas[1] = []life{{}}
	create := match{Method: "POST", Path: "/v1/payment_intents"}
	for range 4 {
		m := create
		m.Customer = s.customer(r)
		s.faults = append(s.faults, fault{Match: m, Times: 1 + r.IntN(2),
			Kind: pick(r, []string{"commit_then_drop", "500_before_commit", "500_after_commit", "500_not_stored", "504_after_commit", "truncate_headers"})})
	}
	s.steps = append(s.steps, step{after: millis(r, 100, 1500), do: jumpClock, jump: pick(r, []time.Duration{16 * time.Minute, 25 * time.Hour})})
	s.someAgain(r)
}

// stored500 meets answers that Stripe keeps for a day, also those that are
// rolled forward hours later.
func stored500(s *script, r *rand.Rand) {
	s.replicas[0] = []life{{crash: pointOf(r)}, {after: millis(r, 0, 1000)}}
	s.replicas[1] = []life{{}}
	for range 5 {
		f := fault{Match: match{Method: "POST", Path: "/v1/payment_intents/*/confirm", Customer: s.customer(r)},
			Kind: pick(r, []string{"500_before_commit", "500_after_commit", "500_not_stored", "500_rolled_forward"})}
		if f.Kind == "500_rolled_forward" {
			f.Delay = pick(r, []string{"1h", "5h", "20h"})
		}
		s.faults = append(s.faults, f)
	}
	if r.IntN(2) == 0 {
		s.steps = append(s.steps, step{after: millis(r, 500, 2000), do: jumpClock, jump: pick(r, []time.Duration{2 * time.Hour, 22 * time.Hour})})
	}
}

// replay takes tokens away from processors that lead to calls, while others die.
func replay(s *script, r *rand.Rand) {
	s.replicas[0] = []life{{crash: fmt.Sprintf("%s:%d", pick(r, pointsOf("saga.", "preflight.", "due.")), 1+r.IntN(2))}, {after: millis(r, 0, 400)}}
	s.replicas[1] = []life{{}}
	for range 1 + r.IntN(3) {
		s.steps = append(s.steps, step{after: millis(r, 0, 600), do: forget, names: []string{pick(r, []string{"billing", "preflight", "schedule"})}})
	}
	s.noise(r, 0.1)
	s.someAgain(r)
}

// faultsAlone kills nobody: the network and Stripe are bad enough.
func faultsAlone(s *script, r *rand.Rand) {
	s.replicas[0], s.replicas[1] = []life{{}}, []life{{}}
	s.noise(r, 0.4)
	for _, kind := range []string{"401", "403", "delay_before_commit", "delay_after_commit", "commit_then_hang", "hang"} {
		f := fault{Match: match{Method: "POST", Path: "/v1/payment_intents/*/confirm", Customer: s.customer(r)}, Kind: kind}
		if strings.HasPrefix(kind, "delay") {
			f.Delay = "1200ms"
		}
		s.faults = append(s.faults, f)
	}
	s.steps = append(s.steps, step{after: millis(r, 200, 2500), do: jumpClock, jump: pick(r, jumps)})
	s.someAgain(r)
}

// restored takes the database back to before the month while a worker that is
// about to confirm is frozen, and Stripe has forgotten every key when the
// others go on.
func restored(s *script, r *rand.Rand) {
	s.replicas[0] = []life{{crash: fmt.Sprintf("confirm.sending:%d:stop", 1+r.IntN(8))}}
	s.replicas[1] = []life{{held: true}}
	s.steps = append(s.steps,
		step{when: struck, do: restore},
		step{do: jumpClock, jump: pick(r, []time.Duration{25 * time.Hour, 26 * time.Hour})},
		step{do: startOne, which: 1},
		step{when: decided, do: jumpClock, jump: 25 * time.Hour}, // the others' keys are forgotten, too
		step{do: thaw})
}

// lateCharge takes money by legacy Charges, where the key alone stands between
// a bill and its second charge: requests are executed when their senders have
// long given up and asked again. Keys are never left to be forgotten; what that
// leads to is a person's to decide.
func lateCharge(s *script, r *rand.Rand) {
	s.charges = true
	s.replicas[0] = []life{{crash: fmt.Sprintf("%s:%d", pick(r, pointsOf("claim.", "intent.", "confirm.", "outcome.", "find.", "start.")), 1+r.IntN(3))}, {after: millis(r, 0, 2600)}}
	s.replicas[1] = []life{{}}
	for range 6 {
		s.faults = append(s.faults, fault{Match: match{Method: "POST", Path: "/v1/charges", Customer: s.customer(r)}, Kind: "delay_before_commit", Delay: millis(r, 1500, 3500).String()})
	}
	s.noise(r, 0.1)
	s.someAgain(r)
}

// noise draws faults for a part of all requests.
func (s *script) noise(r *rand.Rand, rate float64) {
	s.faults = append(s.faults, fault{Seed: 1 + r.Uint64()>>1, Rate: rate, Match: match{Method: "POST"}, Kinds: []string{
		"commit_then_drop", "drop_before_commit", "truncate_body", "truncate_headers", "502", "502_after_commit", "504_after_commit",
		"200_empty", "200_html_after_commit", "429_rate_limit", "429_lock_timeout", "409",
	}})
}

// someAgain asks for some bills over HTTP, too.
func (s *script) someAgain(r *rand.Rand) {
	var names []string
	for range 4 {
		names = append(names, fmt.Sprintf("cust_%06d", 1+r.IntN(bills)))
	}
	s.steps = append(s.steps, step{after: millis(r, 0, 300), do: again, names: names})
}

// customer draws one, by its name at Stripe.
func (s *script) customer(r *rand.Rand) string { return fmt.Sprintf("cus_demo%06d", 1+r.IntN(bills)) }

// String tells the story of a run.
func (s script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s", s.seed, s.plot)
	if s.charges {
		b.WriteString("; by legacy Charges")
	}
	for i, lives := range s.replicas {
		for n, l := range lives {
			if l.crash != "" {
				fmt.Fprintf(&b, "; replica %c, life %d: %s", 'a'+i, n+1, l.crash)
			}
		}
	}
	for _, f := range s.faults {
		if f.Rate > 0 {
			fmt.Fprintf(&b, "; %.0f%% of POSTs meet a fault", 100*f.Rate)
			continue
		}
		fmt.Fprintf(&b, "; %s", strings.TrimSpace(f.Kind+" "+f.Delay+" "+f.Match.Customer))
	}
	for _, st := range s.steps {
		b.WriteString("; ")
		if st.when != atOnce {
			fmt.Fprintf(&b, "once %s ", st.when)
		}
		b.WriteString(string(st.do))
		if st.jump > 0 {
			fmt.Fprintf(&b, " %s", st.jump)
		}
		if st.do == forget {
			fmt.Fprintf(&b, " %s", strings.Join(st.names, " "))
		}
	}
	return b.String()
}
