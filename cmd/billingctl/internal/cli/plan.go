package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/sagas"
)

// sagaCommand is about the processors whose writes may lead to a call.
type sagaCommand struct {
	Plan  planCommand  `cmd:"" help:"Print what a saga would ask for if it read the log again; with --apply, let it."`
	Plans plansCommand `cmd:"" help:"Print the plans that were applied."`
}

type (
	planCommand struct {
		Processor string `arg:"" help:"Name of the saga, or of another effectful processor." placeholder:"SAGA"`
		From      string `help:"The first position that is read again." default:"beginning" placeholder:"POSITION"`
		Apply     bool   `help:"Let the processor read the log again, if the plan is the one of --digest."`
		Digest    string `help:"Digest of the plan that you have read." placeholder:"DIGEST"`
		To        string `help:"The to of the plan that you have read: what follows from facts after it is marked, so that a refusal shows what has come since." placeholder:"POSITION"`
		Reason    string `help:"Why, for whoever reads the record later." placeholder:"TEXT"`
	}
	plansCommand struct{}
)

// Help says what a plan is.
func (planCommand) Help() string {
	return "Without --apply nothing is changed. Every command that the saga would dispatch is printed with its key: exists (nothing will happen: its receipt answers) or NEW (it will be decided, as if it had never been sent). " +
		"Of a processor that writes rows, every row that it would insert. " +
		"--apply makes the plan again while the processor stands still, and refuses if the digest is another one: something was recorded meanwhile, or done. " +
		"A replay calls nobody; what is NEW may lead to a charge. POSITION is a number, a place such as 17-40213, or beginning. The last line is\n\n  " +
		"saga plan: processor=billing from=1 to=7013 commands=1000 existing=999 new=1 digest=4d967a30…"
}

// options checks the flags.
func (p planCommand) options() (from, read int64, err error) {
	switch {
	case p.Apply && (p.Digest == "" || p.Reason == ""):
		return 0, 0, usage("--apply needs --digest of the plan that you have read, and --reason")
	case !p.Apply && p.Digest != "":
		return 0, 0, usage("--digest goes with --apply")
	}
	from, read = 1, math.MaxInt64
	if p.From != "beginning" {
		if from, err = position(p.From); err != nil {
			return 0, 0, usage("--from must be a position such as 40213 or 17-40213, or beginning")
		}
	}
	if p.To != "" {
		if read, err = position(p.To); err != nil {
			return 0, 0, usage("--to must be a position such as 40213")
		}
	}
	return from, read, nil
}

// Run prints the plan, and carries it out if asked to.
func (p planCommand) Run(s *shell) error {
	from, read, err := p.options()
	if err != nil {
		return err
	}
	return s.withLog(func(store *eventstore.Store) error {
		out := &steps{out: bufio.NewWriter(s.Out), json: s.asJSON(), read: read}
		var plan sagas.Plan
		if p.Apply {
			plan, err = sagas.ApplyPlan(s.ctx, store, p.Processor, from, sagas.SignOff{Digest: p.Digest, Actor: actor(), Reason: p.Reason}, out.step)
		} else {
			plan, err = sagas.MakePlan(s.ctx, store, p.Processor, from, out.step)
		}
		changed := errors.Is(err, sagas.ErrPlanChanged)
		if errors.Is(err, sagas.ErrNoPlan) {
			return usageError{fmt.Errorf("%q: %w", p.Processor, err)}
		}
		if err != nil && !changed {
			return err
		}
		if printErr := out.end(plan, p.Apply && !changed); printErr != nil {
			return printErr
		}
		if changed {
			return fmt.Errorf("the plan is not the one of --digest, and nothing was changed: above is what it is now. Something was recorded meanwhile, or done")
		}
		return nil
	})
}

// withLog works on the service's log, in its database.
func (s *shell) withLog(work func(*eventstore.Store) error) error {
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), slog.New(slog.DiscardHandler))
	defer store.Close()
	return work(store)
}

// steps prints a plan as it comes, however long it is.
type steps struct {
	out   *bufio.Writer
	json  bool
	begun bool
	read  int64 // up to where somebody has read the plan before
}

func (w *steps) step(p sagas.PlanStep) error {
	if w.json {
		document, err := json.Marshal(p)
		if err != nil {
			return err
		}
		between := ",\n    "
		if !w.begun {
			between = "{\n  \"steps\": [\n    "
		}
		w.begun = true
		_, err = fmt.Fprintf(w.out, "%s%s", between, document)
		return err
	}
	if !w.begun {
		w.begun = true
		if _, err := fmt.Fprintf(w.out, stepFormat, "because of", "command", "instance", "key", "state"); err != nil {
			return err
		}
	}
	state := "NEW"
	if p.Exists {
		state = "exists"
		if at := p.At.String(); at != "" {
			state += " " + at
		}
	}
	if p.Cause.Position > w.read {
		state += ", since then"
	}
	_, err := fmt.Fprintf(w.out, stepFormat, p.Cause, p.Command, p.Instance, p.Key, state)
	return err
}

// stepFormat has columns wide enough for most: a plan is printed as it is made.
const stepFormat = "%-12s  %-22s  %-24s  %-32s  %s\n"

func (w *steps) end(p sagas.Plan, applied bool) error {
	if w.json {
		document, err := json.Marshal(struct {
			sagas.Plan
			Applied bool `json:"applied"`
		}{p, applied})
		if err != nil {
			return err
		}
		head := "\n  ],\n  "
		if !w.begun {
			head = "{\n  \"steps\": [],\n  "
		}
		_, _ = fmt.Fprintf(w.out, "%s%s\n", head, document[1:])
		return w.out.Flush()
	}
	if w.begun {
		_, _ = fmt.Fprintln(w.out)
	}
	if applied {
		_, _ = fmt.Fprintf(w.out, "%s reads the log again from %d; billingctl processors list says how far it is\n", p.Processor, p.From)
	}
	_, _ = fmt.Fprintf(w.out, "saga plan: processor=%s from=%d to=%d commands=%d existing=%d new=%d digest=%s\n", p.Processor, p.From, p.To, p.Commands, p.Existing, p.New, p.Digest)
	return w.out.Flush()
}

// Run prints the record.
func (plansCommand) Run(s *shell) error {
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	plans, err := sagas.AppliedPlans(s.ctx, pool)
	if err != nil {
		return err
	}
	if s.asJSON() {
		document, err := json.Marshal(struct {
			Items []sagas.Applied `json:"items"`
		}{append([]sagas.Applied{}, plans...)})
		if err != nil {
			return err
		}
		return console.JSON(s.Out, document)
	}
	if len(plans) == 0 {
		return s.printf("no plan was applied\n")
	}
	table := console.NewTable("applied at", "processor", "from#", "to#", "commands#", "existing#", "new#", "digest", "actor", "reason")
	for _, p := range plans {
		table.Row(p.AppliedAt.UTC().Format("2006-01-02 15:04:05"), p.Processor, p.From, p.To, p.Commands, p.Existing, p.New, p.Digest[:12], p.Actor, p.Reason)
	}
	return table.Write(s.Out, "")
}
