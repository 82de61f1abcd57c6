package cli

import (
	"context"
	"errors"
	"net/url"
	"slices"
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
	Show  showLetters `cmd:"" help:"Print one customer's letters of a processor, settled ones too, with their errors."`
	Retry retryLetter `cmd:"" help:"Handle a customer's letters again, in order."`
	Skip  skipLetter  `cmd:"" help:"Decide against a customer's first letter. What waits behind it is handled by retry."`
}

type (
	listLetters struct {
		Processor string `help:"One processor alone." placeholder:"NAME"`
		Customer  string `help:"One customer alone." placeholder:"ID"`
		Resolved  bool   `help:"Those too that were retried or skipped."`
	}
	showLetters struct {
		Processor string `arg:"" help:"Name of the processor."`
		Customer  string `arg:"" help:"The customer's id."`
	}
	retryLetter struct {
		Processor string `arg:"" help:"Name of the processor."`
		Customer  string `arg:"" help:"The customer's id."`
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
	EnqueuedAt  time.Time  `json:"enqueued_at"`
	ResolvedAt  *time.Time `json:"resolved_at"`
}

// lettersMost is how many letters are read at once.
const lettersMost = "500"

// Run prints the list.
func (l listLetters) Run(s *shell) error {
	query := url.Values{"limit": {lettersMost}}
	for name, value := range map[string]string{"processor": l.Processor, "customer": l.Customer} {
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
				err = s.printf("settled %s %s\n", l.ResolvedAt.UTC().Format(time.RFC3339), l.Reason)
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

// Run handles the letters again.
func (l retryLetter) Run(s *shell) error {
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := statusOf(s.ctx, pool, l.Processor); err != nil {
		return err
	}
	named := func(store *eventstore.Store) tracking.Processor {
		all := processorsOf(store)
		i := slices.IndexFunc(all, func(p tracking.Processor) bool { return p.Name == l.Processor })
		if i < 0 {
			return tracking.Processor{Name: l.Processor} // another version's: running it fails
		}
		return all[i]
	}
	return alongside(s.ctx, pool, named, func(ctx context.Context, runtime *tracking.Runtime) error {
		done, err := retryWhenUp(ctx, runtime, l.Processor, l.Customer)
		if said := s.printf("%d letters were handled, %d wait\n", done.Handled, done.Waiting); err == nil {
			err = said
		}
		return err
	})
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
