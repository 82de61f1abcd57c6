package sagas_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas"
)

// plan makes a plan and returns its steps as lines.
func (r *rig) plan(processor string, from int64) (sagas.Plan, []string) {
	r.t.Helper()
	var lines []string
	store := eventstore.New(r.pool, eventstore.NewCodec(domain.Events()), r.log)
	defer store.Close()
	p, err := sagas.MakePlan(r.t.Context(), store, processor, from, func(s sagas.PlanStep) error {
		lines = append(lines, fmt.Sprint(s.Command, " ", s.Instance, " ", s.Exists))
		return nil
	})
	if err != nil {
		r.t.Fatalf("plan %s: %v", processor, err)
	}
	return p, lines
}

func (r *rig) apply(processor string, from int64, by sagas.SignOff) (sagas.Plan, error) {
	store := eventstore.New(r.pool, eventstore.NewCodec(domain.Events()), r.log)
	defer store.Close()
	return sagas.ApplyPlan(r.t.Context(), store, processor, from, by, func(sagas.PlanStep) error { return nil })
}

// sums checks what a plan counts.
func sums(t *testing.T, p sagas.Plan, existing, fresh int64) {
	t.Helper()
	if p.Commands != existing+fresh || p.Existing != existing || p.New != fresh || len(p.Digest) != 64 {
		t.Errorf("plan %+v, want %d existing and %d new", p, existing, fresh)
	}
}

// passOver lets the saga pass over a due, as a build with a fault might have:
// its token moves, nothing is asked for.
func (r *rig) passOver(id domain.CustomerID, p domain.Period) {
	r.t.Helper()
	writer := r.start(options{noProcessors: true})
	defer writer.stop()
	writer.must(commands.Of(commands.NewDeclareBillingDue(id, p)))
	if _, err := r.pool.Exec(r.t.Context(), `UPDATE processor_tokens t SET position = (SELECT max(position) FROM events e WHERE e.partition = t.partition)
		WHERE processor = 'billing' AND partition = $1`, eventstore.PartitionOf(string(id))); err != nil {
		r.t.Fatal(err)
	}
}

// instances is what the saga remembers.
func (r *rig) instances() string {
	r.t.Helper()
	var all string
	err := r.pool.QueryRow(r.t.Context(), `SELECT coalesce(string_agg(concat_ws(' ', id, state, step, attempt, key, refusal, version, last_position), E'\n' ORDER BY id), '') FROM sagas`).Scan(&all)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// A plan says what a replay leads to, and leads to nothing itself. It is good
// for as long as nothing in it changes.
func TestAPlanShowsWhatAReplayAsksFor(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	ids := s.november(8)
	r.eventually("all processors are at the end", s.caughtUp)
	s.stop()

	facts, remembered := r.count(`SELECT count(*) FROM events`), r.instances()
	all, lines := r.plan("billing", 0)
	sums(t, all, 8, 0)
	if all.From != 1 || all.To != int64(r.count(`SELECT max(position) FROM events`)) {
		t.Errorf("from %d to %d", all.From, all.To)
	}
	if want := "charge-billing cust-003/2026-11 true"; strings.Count(strings.Join(lines, "\n"), want) != 1 {
		t.Errorf("no line %q in %q", want, lines)
	}
	for _, processor := range []string{"preflight", "schedule", "manifest"} {
		rows, _ := r.plan(processor, 0)
		sums(t, rows, 8, 0)
	}
	refunds, _ := r.plan("refund-preflight", 0)
	sums(t, refunds, 0, 0)
	end, _ := r.plan("billing", all.To+1)
	sums(t, end, 0, 0)

	if again, _ := r.plan("billing", 1); again != all {
		t.Errorf("%+v, then %+v", all, again)
	}
	// Facts that lead to no command leave the plan as it is.
	writer := r.start(options{noProcessors: true})
	writer.register("pm_card_visa", "another")
	writer.stop()
	if again, _ := r.plan("billing", 1); again.Digest != all.Digest || again.To == all.To {
		t.Errorf("%+v, then %+v", all, again)
	}
	// One that leads to a command does not, whether or not it was sent.
	r.passOver(ids[0], november.Next())
	more, lines := r.plan("billing", 1)
	sums(t, more, 8, 1)
	if more.Digest == all.Digest || !strings.Contains(strings.Join(lines, "\n"), "charge-billing cust-000/2026-12 false") {
		t.Errorf("%+v: %q", more, lines)
	}
	since, _ := r.plan("billing", more.To)
	sums(t, since, 0, 1)
	if now := r.count(`SELECT count(*) FROM events`); now != facts+2 || r.instances() != remembered {
		t.Errorf("%d facts, then %d; instances:\n%s\n%s", facts, now, remembered, r.instances())
	}

	// A row that is lost is one to insert.
	if _, err := r.pool.Exec(t.Context(), `DELETE FROM billing_records WHERE customer_id = 'cust-005'`); err != nil {
		t.Fatal(err)
	}
	rows, _ := r.plan("preflight", 0)
	sums(t, rows, 7, 1)
	if _, err := sagas.MakePlan(t.Context(), s.store, "bills", 0, nil); !is(err, sagas.ErrNoPlan) {
		t.Errorf("a plan of a read model: %v", err)
	}
}

// An applied plan lets the saga read the log again, from anywhere: it remembers
// afterwards what it remembered before, what it had passed over is charged, and
// nothing else reaches Stripe.
func TestAnAppliedPlanIsAReplay(t *testing.T) {
	for _, test := range []struct {
		name string
		from func(*rig) int64
		old  int64 // commands that exist
	}{
		{"from the beginning", func(*rig) int64 { return 0 }, 16},
		{"from the second month", func(r *rig) int64 {
			return int64(r.count(`SELECT min(position) FROM events WHERE event_type = 'billing.due.v1' AND payload->>'billing_period' = '2026-12'`))
		}, 8},
		{"from the middle of a bill", func(r *rig) int64 {
			return int64(r.count(`SELECT max(position) FROM events WHERE event_type = 'customer.billed.v1'`))
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			s := r.start(options{})
			ids := customers(8)
			s.register("pm_card_visa", ids...)
			for _, id := range ids {
				s.must(activate(id))
			}
			r.once(november, ids...)
			december := november.Next()
			r.stripe.Advance(31 * 24 * time.Hour)
			r.once(december, ids...)
			r.eventually("all processors are at the end", s.caughtUp)
			s.stop()
			remembered := r.instances()
			january := december.Next()
			r.passOver(ids[0], january)

			from := test.from(r)
			p, _ := r.plan("billing", from)
			sums(t, p, test.old, 1)
			other, _ := r.plan("preflight", from)
			for _, by := range []sagas.SignOff{{Digest: other.Digest, Reason: "lost"}, {Digest: "", Reason: "lost"}} {
				now, err := r.apply("billing", from, by)
				if !is(err, sagas.ErrPlanChanged) || now != p {
					t.Errorf("digest %q: %+v, %v", by.Digest, now, err)
				}
			}
			if _, err := r.apply("billing", from, sagas.SignOff{Digest: p.Digest}); !is(err, tracking.ErrReasonNeeded) {
				t.Errorf("without a reason: %v", err)
			}
			if n := r.count(`SELECT count(*) FROM saga_plans`) + r.count(`SELECT count(*) FROM processor_runs WHERE action = 'replay'`); n != 0 || !strings.HasPrefix(r.instances(), remembered) {
				t.Errorf("refused, and %d records", n)
			}

			posts := r.posts()
			if _, err := r.apply("billing", from, sagas.SignOff{Digest: p.Digest, Actor: "ops", Reason: "a due was passed over"}); err != nil {
				t.Fatal(err)
			}
			applied, err := sagas.AppliedPlans(t.Context(), r.pool)
			if err != nil || len(applied) != 1 || applied[0].Plan != p || applied[0].Actor != "ops" || applied[0].Reason != "a due was passed over" {
				t.Errorf("record %+v, %v", applied, err)
			}
			if n := r.count(`SELECT count(*) FROM processor_tokens WHERE processor = 'billing' AND replay_until = (SELECT coalesce(max(position), 0) FROM events e WHERE e.partition = processor_tokens.partition)`); n != 64 {
				t.Errorf("%d partitions are read as a replay up to their newest event", n)
			}
			s = r.start(options{})
			r.once(january, ids[0])
			r.eventually("all processors are at the end", s.caughtUp)
			s.stop()
			if n := r.posts() - posts; n != 2 {
				t.Errorf("%d POSTs for one bill: the others were called again", n)
			}
			if n := len(r.stripe.Ledger()); n != 17 {
				t.Errorf("%d charges, want 17", n)
			}
			var rest []string
			for line := range strings.SplitSeq(r.instances(), "\n") {
				if !strings.HasPrefix(line, "cust-000/2027-01 ") {
					rest = append(rest, line)
				}
			}
			if now := strings.Join(rest, "\n"); now != remembered {
				t.Errorf("the saga remembers\n%s\nit remembered\n%s", now, remembered)
			}
			done, _ := r.plan("billing", from)
			sums(t, done, test.old+1, 0)
		})
	}
}

// What the saga has not read yet is not forgotten with what it is to read again,
// and neither is what it has put aside.
func TestAPlanLeavesWhatIsToCome(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	ids := s.november(4)
	r.eventually("all processors are at the end", s.caughtUp)
	s.stop()
	writer := r.start(options{noProcessors: true})
	for _, id := range ids {
		writer.must(commands.Of(commands.NewDeclareBillingDue(id, november.Next())))
	}
	writer.stop()

	// More is recorded of each of these bills: a second due, as no command would.
	end := int64(r.count(`SELECT max(position) FROM events`)) + 1
	if _, err := r.pool.Exec(t.Context(), `
		INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload)
		SELECT partition, stream_id, stream_version + 1, event_type, sequence_key, payload
		FROM events WHERE event_type = 'billing.due.v1' AND payload->>'billing_period' = '2026-12'`); err != nil {
		t.Fatal(err)
	}
	p, _ := r.plan("billing", end)
	sums(t, p, 0, 0)
	letter := func(sql string) {
		if _, err := r.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	letter(`INSERT INTO dead_letters (processor, position, partition, sequence_key, event_id, event_type, attempts, error)
		SELECT 'billing', position, partition, sequence_key, event_id, event_type, 1, 'ill' FROM events WHERE event_type = 'billing.due.v1' ORDER BY position LIMIT 1`)
	if _, err := r.apply("billing", end, sagas.SignOff{Digest: p.Digest, Reason: "too far"}); !is(err, sagas.ErrLettersWait) {
		t.Errorf("with a letter before it: %v", err)
	}
	letter(`DELETE FROM dead_letters`)
	if _, err := r.apply("billing", end, sagas.SignOff{Digest: p.Digest, Reason: "too far"}); err != nil {
		t.Fatal(err)
	}
	s = r.start(options{})
	r.once(november.Next(), ids...)
	r.eventually("all processors are at the end", s.caughtUp)
	if n := len(r.stripe.Ledger()); n != 8 {
		t.Errorf("%d charges, want 8", n)
	}
}

// Pre-flight rows of paid bills are lost under a running service. A plan brings
// them back as paid, and neither they nor the others are sent to Stripe.
func TestLostRowsComeBackByAPlan(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	ids := customers(10)
	s.owe(ids...)
	r.once(november, ids...)
	r.eventually("all processors are at the end", s.caughtUp)
	if n := r.count(`WITH gone AS (DELETE FROM billing_records WHERE customer_id < 'cust-004' RETURNING 1) SELECT count(*) FROM gone`); n != 4 {
		t.Fatalf("%d rows deleted", n)
	}
	p, _ := r.plan("preflight", 0)
	sums(t, p, 6, 4)
	posts, facts := r.posts(), r.count(`SELECT count(*) FROM events`)
	if _, err := r.apply("preflight", 0, sagas.SignOff{Digest: p.Digest, Reason: "rows are lost"}); err != nil {
		t.Fatal(err)
	}
	r.once(november, ids...)
	r.eventually("all processors are at the end", s.caughtUp)
	if n := r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`); n != 10 {
		t.Errorf("%d rows are paid", n)
	}
	if r.posts() != posts || r.count(`SELECT count(*) FROM events`) != facts {
		t.Errorf("%d POSTs and %d facts came of it", r.posts()-posts, r.count(`SELECT count(*) FROM events`)-facts)
	}
	done, _ := r.plan("preflight", 0)
	sums(t, done, 10, 0)
}

// Tokens are lost and plans applied at any moment of four months, while two
// services work and are restarted: each bill is charged once, by one create and
// one confirm, and the saga remembers in the end what the log makes of it.
func TestReplaysAtRandomMoments(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := newRig(t)
			random := rand.New(rand.NewPCG(seed, 6))
			replicas := []*service{r.start(options{}), r.start(options{})}
			ids := customers(12)
			replicas[0].register("pm_card_visa", ids...)
			for _, id := range ids {
				replicas[0].must(activate(id))
			}
			effectful := []string{"billing", "preflight", "schedule", "manifest"}
			lost, applied, refused := 0, 0, 0
			trouble := func() {
				name := effectful[random.IntN(len(effectful))]
				switch random.IntN(4) {
				case 0: // all of them
					lost += r.count(`WITH gone AS (DELETE FROM processor_tokens WHERE processor = $1 RETURNING 1) SELECT count(*) FROM gone`, name)
				case 1: // one
					lost += r.count(`WITH gone AS (DELETE FROM processor_tokens WHERE processor = $1 AND partition = $2 RETURNING 1) SELECT count(*) FROM gone`,
						name, eventstore.PartitionOf(string(ids[random.IntN(len(ids))])))
				case 2:
					from := 1 + random.Int64N(int64(r.count(`SELECT max(position) FROM events`)))
					p, _ := r.plan(name, from)
					switch _, err := r.apply(name, from, sagas.SignOff{Digest: p.Digest, Reason: "a try"}); {
					case err == nil:
						applied++
					case is(err, sagas.ErrPlanChanged), is(err, tracking.ErrUnknownProcessor): // more was recorded; all tokens are lost
						refused++
					default:
						t.Errorf("apply a plan of %s: %v", name, err)
					}
				case 3:
					i := random.IntN(len(replicas))
					replicas[i].stop()
					replicas[i] = r.start(options{})
				}
			}
			month := november
			for n := range 4 {
				if n > 0 {
					r.stripe.Advance(31 * 24 * time.Hour)
					month = month.Next()
				}
				for range 5 {
					bills := n*len(ids) + random.IntN(len(ids))
					r.eventually("some are charged", func() bool { return len(r.stripe.Ledger()) >= bills })
					trouble()
				}
				r.once(month, ids...)
			}
			for _, s := range replicas {
				s.stop()
			}
			last := r.start(options{}) // who starts makes what tokens are missing
			for _, name := range effectful {
				r.eventually(name+" has all its tokens", func() bool {
					return r.count(`SELECT count(*) FROM processor_tokens WHERE processor = $1`, name) == eventstore.Partitions
				})
			}
			r.eventually("all processors are at the end", last.caughtUp)
			last.stop()
			bills := 4 * len(ids)
			if n := len(r.stripe.Ledger()); n != bills {
				t.Errorf("%d charges for %d bills", n, bills)
			}
			if n := r.posts(); n != 2*bills {
				t.Errorf("%d POSTs for %d bills", n, bills)
			}
			if n := r.count(`SELECT count(*) FROM dead_letters`); n != 0 {
				t.Errorf("%d letters", n)
			}
			p, _ := r.plan("billing", 0)
			sums(t, p, int64(bills), 0)
			remembered := r.instances()
			if _, err := r.apply("billing", 0, sagas.SignOff{Digest: p.Digest, Reason: "the last one"}); err != nil {
				t.Fatal(err)
			}
			if r.instances() != "" {
				t.Error("instances are left")
			}
			again := r.start(options{})
			r.eventually("billing is at the end", again.caughtUp)
			again.stop()
			if now := r.instances(); now != remembered {
				t.Errorf("the saga remembers\n%s\nit remembered\n%s", now, remembered)
			}
			t.Logf("%d tokens lost, %d plans applied, %d refused", lost, applied, refused)
		})
	}
}
