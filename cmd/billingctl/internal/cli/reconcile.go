package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/console"
)

// reconcileCommand compares the log, the pre-flight rows and Stripe.
type reconcileCommand struct {
	Run     runReconcile   `cmd:"" default:"withargs" help:"Compare the books; this is also what reconcile alone does."`
	Dismiss dismissFinding `cmd:"" help:"Leave a finding as it is, and say why."`
}

type (
	runReconcile struct {
		Period string `help:"One billing period alone, such as 2026-11." placeholder:"PERIOD" xor:"scope"`
		Since  string `help:"Bills and charges since a day or a time, such as 2026-11-01." placeholder:"TIME" xor:"scope"`
		All    bool   `help:"Print the findings too that were dismissed."`
	}
	dismissFinding struct {
		Kind    string `arg:"" help:"The finding's kind: orphan, missing, mismatch or possible_duplicate."`
		Subject string `arg:"" help:"What it is about, as reconcile prints it."`
		Reason  string `required:"" help:"Why it stays as it is, for whoever reads the record later; no personal data." placeholder:"TEXT"`
	}
)

// Help is what reconcile --help says beyond the flags.
func (reconcileCommand) Help() string {
	return `The service compares its log and its pre-flight rows with Stripe's lists of intents and charges, and catches up with Stripe's events. What Stripe proves is repaired, and recorded as recovered; nothing is ever refunded. It may be run at any time and as often as you like.

The last line is for scripts:

    reconcile: bills=1000 charges=1000 missing=0 orphans=0 mismatches=0 duplicates=0 repaired=0 dismissed=0

A charge without our markers beside one that paid a bill, of the same customer and amount on the same day, is a possible_duplicate, and counted with the duplicates. What was looked into and stays as it is can be dismissed: it is counted as such, printed with --all, and counted nowhere else.

Exit status 1 if something was found that is neither repaired nor dismissed.`
}

// reconciliation is what is shown of one.
type reconciliation struct {
	ID         int64             `json:"id"`
	Scope      string            `json:"scope"`
	State      string            `json:"state"`
	Phase      string            `json:"phase"`
	Objects    int               `json:"objects"`
	Charges    int               `json:"charges"`
	Bills      int               `json:"bills"`
	Expected   int               `json:"expected"`
	Events     int               `json:"events"`
	Missing    int               `json:"missing"`
	Orphans    int               `json:"orphans"`
	Mismatches int               `json:"mismatches"`
	Duplicates int               `json:"duplicates"`
	Repaired   int               `json:"repaired"`
	Unrepaired int               `json:"unrepaired"`
	Dismissed  int               `json:"dismissed"`
	Error      string            `json:"error"`
	Findings   []json.RawMessage `json:"findings"`
	NextCursor string            `json:"next_cursor"`
}

// finding is what is shown of a difference.
type finding struct {
	Kind          string  `json:"kind"`
	Subject       string  `json:"subject"`
	CustomerID    string  `json:"customer_id"`
	BillingPeriod string  `json:"billing_period"`
	Amount        *amount `json:"amount"`
	Detail        string  `json:"detail"`
	Repaired      bool    `json:"repaired"`
	Action        string  `json:"action"`
	Dismissed     *struct {
		By     string `json:"dismissed_by"`
		Reason string `json:"reason"`
	} `json:"dismissed"`
}

// askEvery is how often the service is asked how far it has come.
const askEvery = 200 * time.Millisecond

// Run asks for a reconciliation and waits for its end.
func (r runReconcile) Run(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	scope := map[string]string{}
	if r.Period != "" {
		scope["period"] = r.Period
	}
	if r.Since != "" {
		scope["since"] = r.Since
	}
	v, path, err := s.reconcile(c, scope)
	if err != nil {
		return err
	}
	document, err := wholeReconciliation(s, c, path)
	if err != nil {
		return err
	}
	line := fmt.Sprintf("reconcile: bills=%d charges=%d missing=%d orphans=%d mismatches=%d duplicates=%d repaired=%d dismissed=%d\n",
		v.Bills, v.Charges, v.Missing, v.Orphans, v.Mismatches, v.Duplicates, v.Repaired, v.Dismissed)
	if err := show(s, document, func(v reconciliation) error { return v.write(s, r.All) }); err != nil {
		return err
	}
	to := s.Out
	if s.asJSON() {
		to = s.Err
	}
	if _, err := fmt.Fprint(to, line); err != nil {
		return err
	}
	if v.State != "done" {
		return fmt.Errorf("reconciliation %d failed: %s", v.ID, v.Error)
	}
	if v.Unrepaired > 0 {
		return errReported
	}
	return nil
}

// reconcile has the books of a scope compared, and waits for the end.
func (s *shell) reconcile(c *client.Client, scope map[string]string) (v reconciliation, path string, err error) {
	body, err := json.Marshal(scope)
	if err != nil {
		return v, "", err
	}
	answer, err := c.Post(s.ctx, "/v1/reconciliations", body)
	if err != nil {
		return v, "", fmt.Errorf("reconcile: %w", err)
	}
	if err := json.Unmarshal(answer, &v); err != nil {
		return v, "", fmt.Errorf("read the answer of billingd: %w", err)
	}
	path = "/v1/reconciliations/" + strconv.FormatInt(v.ID, 10)
	v, err = s.awaitReconciliation(c, path)
	return v, path, err
}

// awaitReconciliation shows how far it has come until it has ended.
func (s *shell) awaitReconciliation(c *client.Client, path string) (v reconciliation, err error) {
	var bar *console.Bar
	phase := ""
	end := func() { // what was under way has ended: the service tells where it came to
		if bar != nil {
			done, _, _ := v.of(phase)
			bar.Set(done)
			bar.End()
			bar = nil
		}
	}
	defer end()
	for {
		v = reconciliation{}
		err := c.Read(s.ctx, path, url.Values{"limit": {"1"}}, &v)
		if p, ok := errors.AsType[*client.Problem](err); ok && p.Passes() {
			err = nil // the service restarts; another instance goes on
		}
		if err != nil {
			return v, fmt.Errorf("reconcile: %w", err)
		}
		if v.Phase != phase && v.Phase != "" {
			end()
			phase = v.Phase
			_, unit, total := v.of(phase)
			bar = s.progress().Start(phase, unit, total)
		}
		if bar != nil {
			done, _, _ := v.of(phase)
			bar.Set(done)
		}
		if v.State == "done" || v.State == "failed" {
			return v, nil
		}
		if !pause(s.ctx, askEvery) {
			return v, s.ctx.Err()
		}
	}
}

// of is how far a phase has come, and of how many; 0: that is not known.
func (r reconciliation) of(phase string) (done int, unit string, total int) {
	switch phase {
	case "bills":
		return r.Bills, "bills", r.Expected
	case "events":
		return r.Events, "events", 0
	}
	return r.Objects, "objects", 0
}

// wholeReconciliation is the document with all of its findings.
func wholeReconciliation(s *shell, c *client.Client, path string) (json.RawMessage, error) {
	query := url.Values{"limit": {"500"}}
	document, err := c.Get(s.ctx, path, query)
	if err != nil {
		return nil, err
	}
	var page reconciliation
	if err := json.Unmarshal(document, &page); err != nil {
		return nil, fmt.Errorf("read the answer of billingd: %w", err)
	}
	if page.NextCursor == "" {
		return document, nil
	}
	all := page.Findings
	for page.NextCursor != "" {
		query.Set("cursor", page.NextCursor)
		page = reconciliation{}
		if err := c.Read(s.ctx, path, query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Findings...)
	}
	var fields map[string]any
	if err := json.Unmarshal(document, &fields); err != nil {
		return nil, fmt.Errorf("read the answer of billingd: %w", err)
	}
	delete(fields, "next_cursor")
	fields["findings"] = all
	return json.Marshal(fields)
}

// write prints the findings as a table; all: those too that were dismissed.
func (r reconciliation) write(s *shell, all bool) error {
	if err := s.printf("reconciliation %d, %s: %s objects of Stripe's lists, %s events\n", r.ID, r.Scope, console.Count(r.Objects), console.Count(r.Events)); err != nil {
		return err
	}
	table := console.NewTable("kind", "about", "customer", "period", "amount#", "what", "done or proposed")
	rows := 0
	for _, raw := range r.Findings {
		var f finding
		if err := json.Unmarshal(raw, &f); err != nil {
			return fmt.Errorf("read the answer of billingd: %w", err)
		}
		display, action := "", f.Action
		if f.Amount != nil {
			display = f.Amount.Display
		}
		switch {
		case f.Dismissed != nil && !all:
			continue
		case f.Dismissed != nil:
			action = "dismissed by " + f.Dismissed.By + ": " + f.Dismissed.Reason
		case f.Repaired:
			action = "repaired: " + action
		}
		table.Row(f.Kind, f.Subject, f.CustomerID, f.BillingPeriod, display, f.Detail, action)
		rows++
	}
	switch {
	case rows == 0 && r.Dismissed > 0:
		return s.printf("the books agree, but for what was dismissed: --all prints it\n")
	case rows == 0:
		return s.printf("the books agree\n")
	}
	return table.Write(s.Out, "")
}

// Run dismisses the finding.
func (d dismissFinding) Run(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]string{"kind": d.Kind, "subject": d.Subject, "reason": d.Reason})
	if err != nil {
		return err
	}
	document, err := c.Post(s.ctx, "/v1/reconciliations/dismissals", body)
	if err != nil {
		return fmt.Errorf("dismiss %s %s: %w", d.Kind, d.Subject, err)
	}
	type dismissal struct {
		Kind    string `json:"kind"`
		Subject string `json:"subject"`
		By      string `json:"dismissed_by"`
	}
	return show(s, document, func(v dismissal) error { return s.printf("%s %s is dismissed by %s\n", v.Kind, v.Subject, v.By) })
}
