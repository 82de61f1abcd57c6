package cli

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/sagas"
)

// scheduleCommand is about commands that wait for their time.
type scheduleCommand struct {
	List       listSchedule `cmd:"" help:"Print what waits for its time, with its token."`
	Cancel     cancelTimer  `cmd:"" help:"Let a bill rest that was to be tried again."`
	Reschedule moveTimer    `cmd:"" help:"Set when a declined bill is tried again."`
}

// Help is what schedule --help says beyond its commands.
func (scheduleCommand) Help() string {
	return "list works on the database. cancel and reschedule are decisions that the log keeps, with their reasons: they go to the service, by a token with the scope operate."
}

type (
	listSchedule struct {
		Customer string `help:"One customer alone." placeholder:"ID"`
		Limit    int    `help:"Rows at most." default:"100" placeholder:"N"`
	}
	cancelTimer struct {
		Token  string `arg:"" help:"The token, as schedule list shows it."`
		Reason string `required:"" help:"Why, for whoever reads the record later; no personal data." placeholder:"TEXT"`
	}
	moveTimer struct {
		Token  string    `arg:"" help:"The token, as schedule list shows it."`
		At     time.Time `required:"" help:"When to try again, such as 2026-11-20T09:00:00Z." placeholder:"TIME"`
		Reason string    `required:"" help:"Why, for whoever reads the record later; no personal data." placeholder:"TEXT"`
	}
)

// Run prints the list.
func (l listSchedule) Run(s *shell) error {
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	all, err := sagas.ScheduledCommands(s.ctx, pool, l.Customer, l.Limit)
	if err != nil {
		return err
	}
	document, err := json.Marshal(map[string]any{"items": all})
	if err != nil {
		return err
	}
	return show(s, document, func(v struct{ Items []sagas.ScheduledCommand }) error {
		if len(v.Items) == 0 {
			return s.printf("nothing is scheduled\n")
		}
		table := console.NewTable("due", "command", "attempt#", "token")
		for _, c := range v.Items {
			due := "now"
			if c.DueAt != nil {
				due = moment(c.DueAt)
			}
			table.Row(due, c.Command, c.Attempt, c.Token)
		}
		return table.Write(s.Out, "")
	})
}

// Run lets the bill rest.
func (c cancelTimer) Run(s *shell) error {
	return s.steer("stop-dunning", c.Token, map[string]any{"reason": c.Reason})
}

// Run sets the time.
func (m moveTimer) Run(s *shell) error {
	return s.steer("reschedule-dunning", m.Token, map[string]any{"reason": m.Reason, "at": m.At.UTC().Format(time.RFC3339)})
}

// steer sends a decision about the bill that a token names.
func (s *shell) steer(command, token string, fields map[string]any) error {
	parts := strings.Split(token, "/")
	if len(parts) != 3 || parts[0] != "dunning" {
		return usageError{fmt.Errorf("%s is no token such as dunning/cust_123/2026-11", token)}
	}
	fields["customer_id"], fields["billing_period"] = parts[1], parts[2]
	c, err := s.client()
	if err != nil {
		return err
	}
	return s.decide(c, command, rand.Text(), fields)
}
