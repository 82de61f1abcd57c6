package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/sagas"
)

// deadLettersCommand is about events that could not be handled.
type deadLettersCommand struct {
	List  listLetters `cmd:"" help:"Print what waits."`
	Show  showLetters `cmd:"" help:"Print one customer's letters of a processor, settled ones too, with their errors; or one letter with its event, its bill's state and its history."`
	Retry retryLetter `cmd:"" help:"Handle letters again, each customer's in order: one customer's, all, or those that match."`
	Skip  skipLetter  `cmd:"" help:"Decide against a customer's first letter. What waits behind it is handled by retry."`
}

type (
	listLetters struct {
		Processor string `help:"One processor alone." placeholder:"NAME"`
		Customer  string `help:"One customer alone." placeholder:"ID"`
		Type      string `help:"Events of this contract name alone." placeholder:"NAME"`
		Error     string `help:"Those whose error holds this text." placeholder:"TEXT"`
		Resolved  bool   `help:"Those too that were retried or skipped."`
	}
	showLetters struct {
		Processor string `arg:"" help:"Name of the processor."`
		Customer  string `arg:"" help:"The customer's id."`
		Place     string `arg:"" optional:"" help:"Place of one letter, such as 17-40213."`
	}
	retryLetter struct {
		Processor string `arg:"" optional:"" help:"Name of the processor."`
		Customer  string `arg:"" optional:"" help:"The customer's id."`
		All       bool   `help:"Everything that waits, of the processor or of all."`
		Type      string `help:"Customers with a letter of this contract name." placeholder:"NAME"`
		Error     string `help:"Customers with a letter whose error holds this text." placeholder:"TEXT"`
		Yes       bool   `short:"y" help:"Do it without asking, once the count is printed."`
	}
	skipLetter struct {
		Processor string `arg:"" help:"Name of the processor."`
		Customer  string `arg:"" help:"The customer's id."`
		Place     string `arg:"" help:"Place of the letter, such as 17-40213: it must be the customer's first."`
		Reason    string `required:"" help:"Why, for whoever reads the record later." placeholder:"TEXT"`
	}
)

// letter is what is shown of a dead letter.
type letter struct {
	Processor   string     `json:"processor"`
	Place       string     `json:"place"`
	SequenceKey string     `json:"sequence_key"`
	EventType   string     `json:"event_type"`
	Attempts    int        `json:"attempts"`
	Error       string     `json:"error"`
	Status      string     `json:"status"`
	Reason      string     `json:"reason"`
	Note        string     `json:"note"`
	EnqueuedAt  time.Time  `json:"enqueued_at"`
	ResolvedAt  *time.Time `json:"resolved_at"`
}

// lettersMost is how many letters are read at once.
const lettersMost = "500"

// Run prints the list.
func (l listLetters) Run(s *shell) error {
	query := url.Values{"limit": {lettersMost}}
	for name, value := range map[string]string{"processor": l.Processor, "customer": l.Customer, "type": l.Type, "error": l.Error} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if l.Resolved {
		query.Set("resolved", "true")
	}
	return s.letters(query, func(letters []letter) error {
		table := console.NewTable("place", "processor", "customer", "fact", "status", "attempts#", "error")
		for _, l := range letters {
			table.Row(l.Place, l.Processor, l.SequenceKey, l.EventType, l.Status, l.Attempts, short(l.Error, 80))
		}
		return table.Write(s.Out, "")
	})
}

// Run prints the letters in full.
func (l showLetters) Run(s *shell) error {
	if l.Place != "" {
		return l.one(s)
	}
	query := url.Values{"processor": {l.Processor}, "customer": {l.Customer}, "resolved": {"true"}, "limit": {lettersMost}}
	return s.letters(query, func(letters []letter) error {
		for i, l := range letters {
			if i > 0 {
				if err := s.printf("\n"); err != nil {
					return err
				}
			}
			err := s.printf("%s  %s  %s\nput aside %s, %d attempts\n%s\n", l.Place, l.EventType, l.Status, l.EnqueuedAt.UTC().Format(time.RFC3339), l.Attempts, l.Error)
			if err == nil && l.ResolvedAt != nil {
				err = s.printf("settled %s %s\n", l.ResolvedAt.UTC().Format(time.RFC3339), cmp.Or(l.Reason, l.Note))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// letters reads letters and prints them, or says that there are none.
func (s *shell) letters(query url.Values, table func([]letter) error) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	document, err := c.Get(s.ctx, "/v1/dead-letters", query)
	if err != nil {
		return err
	}
	type page struct {
		Items      []letter `json:"items"`
		NextCursor string   `json:"next_cursor"`
	}
	return show(s, document, func(p page) error {
		if len(p.Items) == 0 {
			return s.printf("no dead letters\n")
		}
		if err := table(p.Items); err != nil {
			return err
		}
		if p.NextCursor != "" {
			return s.printf("and more: narrow the list down by --processor or --customer\n")
		}
		return nil
	})
}

// one prints one letter in full.
func (l showLetters) one(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	document, err := c.Get(s.ctx, "/v1/dead-letters/"+url.PathEscape(l.Processor)+"/"+url.PathEscape(l.Place), nil)
	if err != nil {
		return err
	}
	type detail struct {
		letter
		History []struct {
			Outcome string    `json:"outcome"`
			Actor   string    `json:"actor"`
			Detail  string    `json:"detail"`
			At      time.Time `json:"at"`
		} `json:"history"`
		Event struct {
			Payload    json.RawMessage `json:"payload"`
			RecordedAt time.Time       `json:"recorded_at"`
		} `json:"event"`
		Saga *struct {
			Step    string          `json:"step"`
			State   json.RawMessage `json:"state"`
			Refusal *string         `json:"refusal"`
		} `json:"saga"`
		Row *struct {
			State   string `json:"state"`
			Attempt int    `json:"attempt"`
		} `json:"row"`
	}
	return show(s, document, func(d detail) error {
		if d.SequenceKey != l.Customer {
			return fmt.Errorf("the letter at %s is %s's", l.Place, d.SequenceKey)
		}
		lines := console.NewTable("letter", d.Place+" of "+d.Processor)
		lines.Row("customer", d.SequenceKey)
		lines.Row("status", strings.TrimSpace(d.Status+" "+cmp.Or(d.Reason, d.Note)))
		lines.Row("event", d.EventType+", recorded "+d.Event.RecordedAt.UTC().Format(time.RFC3339))
		lines.Row("payload", string(d.Event.Payload))
		lines.Row("error", d.Error)
		if d.Saga != nil {
			lines.Row("saga", d.Saga.Step+" "+string(d.Saga.State))
		}
		if d.Row != nil {
			lines.Row("row", fmt.Sprintf("%s, attempt %d", d.Row.State, d.Row.Attempt))
		}
		history := console.NewTable("at", "outcome", "by", "detail")
		for _, h := range d.History {
			history.Row(h.At.UTC().Format(time.RFC3339), h.Outcome, cmp.Or(h.Actor, "-"), cmp.Or(short(h.Detail, 120), "-"))
		}
		return s.tables(lines, history)
	})
}

// Run handles letters again. More than one customer's are counted first.
func (l retryLetter) Run(s *shell) error {
	one := l.Customer != ""
	switch matching := l.Type != "" || l.Error != ""; {
	case one && (l.All || matching):
		return usage("name a customer, or give --all, --type or --error")
	case !one && !l.All && !matching:
		return usage("whose letters? name a processor and a customer, or give --all, --type or --error")
	}
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	if l.Processor != "" {
		if _, err := statusOf(s.ctx, pool, l.Processor); err != nil {
			return err
		}
	}
	found := []tracking.Sequence{{Processor: l.Processor, SequenceKey: l.Customer}}
	if !one {
		if found, err = tracking.Sequences(s.ctx, pool, tracking.LetterFilter{Processor: l.Processor, EventType: l.Type, Error: l.Error}); err != nil {
			return err
		}
		if agreed, err := l.agreed(s, found); err != nil || !agreed {
			return err
		}
	}
	return l.retry(s, pool, found)
}

// agreed prints what would be handled again, and asks.
func (l retryLetter) agreed(s *shell, found []tracking.Sequence) (bool, error) {
	letters, processors := 0, map[string]bool{}
	for _, q := range found {
		letters += q.Letters
		processors[q.Processor] = true
	}
	if s.asJSON() {
		s = s.beside()
	}
	if err := s.printf("%d letters of %d customers wait at %d processors\n", letters, len(found), len(processors)); err != nil {
		return false, err
	}
	switch {
	case len(found) == 0:
		return false, nil
	case l.Yes:
		return true, nil
	case !console.IsTerminal(s.In):
		return false, usage("nothing was done: --yes handles them")
	}
	if err := s.printf("handle them again? [y/N] "); err != nil {
		return false, err
	}
	answer, _ := bufio.NewReader(s.In).ReadString('\n')
	return strings.EqualFold(strings.TrimSpace(answer), "y"), nil
}

// retry handles the letters of each sequence. One that fails again stays parked,
// and the others go on.
func (l retryLetter) retry(s *shell, pool *pgxpool.Pool, found []tracking.Sequence) error {
	var total tracking.Redelivery
	var failed error
	for at := 0; at < len(found); {
		of := found[at].Processor
		end := at
		for end < len(found) && found[end].Processor == of {
			end++
		}
		err := alongside(s.ctx, pool, func(store *eventstore.Store) tracking.Processor { return processorOf(store, of) }, func(ctx context.Context, runtime *tracking.Runtime) error {
			for _, q := range found[at:end] {
				done, err := retryWhenUp(ctx, runtime, of, q.SequenceKey)
				total.Handled, total.Void, total.Waiting = total.Handled+done.Handled, total.Void+done.Void, total.Waiting+done.Waiting
				if err != nil {
					if len(found) == 1 || ctx.Err() != nil {
						return err
					}
					failed = errReported
					_, _ = fmt.Fprintf(s.Err, "%s of %s: %v\n", q.SequenceKey, of, err)
				}
			}
			return nil
		})
		if err != nil {
			failed = err
			break
		}
		at = end
	}
	void := ""
	if total.Void > 0 {
		void = fmt.Sprintf(", %d of them with nothing left to do", total.Void)
	}
	said := s.done("%d letters were handled%s, %d wait", total.Handled, void, total.Waiting)
	return cmp.Or(failed, said)
}

// processorOf is a processor that the service runs, by its name.
func processorOf(store *eventstore.Store, name string) tracking.Processor {
	all := processorsOf(store)
	i := slices.IndexFunc(all, func(p tracking.Processor) bool { return p.Name == name })
	if i < 0 {
		return tracking.Processor{Name: name} // another version's: running it fails
	}
	return all[i]
}

// retryWhenUp retries once the processor runs in this process.
func retryWhenUp(ctx context.Context, runtime *tracking.Runtime, processor, customer string) (tracking.Redelivery, error) {
	for until := time.Now().Add(stalled); ; {
		done, err := runtime.Retry(ctx, processor, customer, actor())
		if !errors.Is(err, tracking.ErrUnknownProcessor) || time.Now().After(until) || !pause(ctx, 10*time.Millisecond) {
			return done, err
		}
	}
}

// processorsOf are all processors that the service runs.
func processorsOf(store *eventstore.Store) []tracking.Processor {
	dispatcher := commands.NewDispatcher(store)
	all := []tracking.Processor{sagas.Billing.Processor(dispatcher), sagas.Preflight(func() {}), sagas.Schedule(dispatcher), sagas.RefundPreflight(func() {}), sagas.Manifest(func() {}, func() {})}
	for _, p := range projections.All() {
		all = append(all, p.Processor())
	}
	return all
}

// Run skips the letter.
func (l skipLetter) Run(s *shell) error {
	place, err := eventstore.ParsePlace(l.Place)
	if err != nil {
		return usageError{err}
	}
	return s.operate("the letter at "+l.Place+" is skipped", func(pool *pgxpool.Pool) error {
		return tracking.Skip(s.ctx, pool, l.Processor, l.Customer, place.Position, actor(), l.Reason)
	})
}

// short cuts a text to at most n characters.
func short(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
