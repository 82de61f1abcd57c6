package cli

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
)

// billCommand prints the whole story of one bill.
type billCommand struct {
	Customer string `arg:"" help:"Customer id."`
	Period   string `arg:"" help:"Billing period: 2026-11, 2026-Q3 or 2026."`
}

// story is what is shown of a bill's story.
type story struct {
	Bill struct {
		Status string  `json:"status"`
		Amount amount  `json:"amount"`
		Taken  *amount `json:"taken"`
		Reason string  `json:"reason"`

		Dunning *struct {
			NextAttempt   int        `json:"next_attempt"`
			NextAttemptAt *time.Time `json:"next_attempt_at"`
			Awaits        string     `json:"awaits"`
			Reason        string     `json:"reason"`
		} `json:"dunning"`
		CustomerAction *struct {
			Kind     string `json:"kind"`
			IntentID string `json:"intent_id"`
			Help     string `json:"help"`
		} `json:"customer_action"`
	} `json:"bill"`
	Attempts []struct {
		Attempt     int    `json:"attempt"`
		Status      string `json:"status"`
		Key         string `json:"key"`
		Starts      int    `json:"starts"`
		IntentID    string `json:"intent_id"`
		ChargeID    string `json:"charge_id"`
		DeclineCode string `json:"decline_code"`
		Reason      string `json:"reason"`
	} `json:"attempts"`
	Facts []struct {
		Position   string          `json:"position"`
		Type       string          `json:"type"`
		Payload    json.RawMessage `json:"payload"`
		CommandKey string          `json:"command_key"`
		RecordedAt time.Time       `json:"recorded_at"`
	} `json:"facts"`
	Commands []struct {
		Key        string    `json:"key"`
		Command    string    `json:"command"`
		RecordedAt time.Time `json:"recorded_at"`
	} `json:"commands"`
	Record *struct {
		State        string     `json:"state"`
		Attempt      int        `json:"attempt"`
		Start        int        `json:"start"`
		Fence        int64      `json:"fence"`
		IntentID     string     `json:"intent_id"`
		IntentNo     int        `json:"intent_no"`
		LatestCharge string     `json:"latest_charge"`
		FirstSentAt  *time.Time `json:"first_sent_at"`
		LastSentAt   *time.Time `json:"last_sent_at"`
		NextTryAt    *time.Time `json:"next_try_at"`
	} `json:"billing_record"`
	Saga *struct {
		Step    string `json:"step"`
		Attempt int    `json:"attempt"`
		Refusal string `json:"refusal"`
	} `json:"saga"`
	Stripe struct {
		Customers      []string `json:"customers"`
		PaymentMethods []string `json:"payment_methods"`
		Intents        []string `json:"intents"`
		Charges        []string `json:"charges"`
		Refunds        []string `json:"refunds"`
		Disputes       []string `json:"disputes"`
	} `json:"stripe"`
	Refunds []struct {
		RefundID       string     `json:"refund_id"`
		ChargeID       string     `json:"charge_id"`
		Amount         amount     `json:"amount"`
		State          string     `json:"state"`
		Key            string     `json:"key"`
		StripeRefundID string     `json:"stripe_refund_id"`
		LastSentAt     *time.Time `json:"last_sent_at"`
	} `json:"refund_records"`
	Webhooks []struct {
		EventID    string    `json:"event_id"`
		Type       string    `json:"type"`
		Source     string    `json:"source"`
		State      string    `json:"state"`
		Note       string    `json:"note"`
		ReceivedAt time.Time `json:"received_at"`
	} `json:"webhooks"`
	Parked []struct {
		Processor string `json:"processor"`
		Position  string `json:"position"`
		Type      string `json:"type"`
		Error     string `json:"error"`
	} `json:"parked"`
	Proxy *struct {
		Unavailable string `json:"unavailable"`
		Calls       []struct {
			At             time.Time `json:"at"`
			Phase          string    `json:"phase"`
			VaultKey       string    `json:"vault_key"`
			Method         string    `json:"method"`
			Path           string    `json:"path"`
			Verdict        string    `json:"verdict"`
			Code           string    `json:"code"`
			Reason         string    `json:"reason"`
			IdempotencyKey string    `json:"idempotency_key"`
			Reservation    string    `json:"reservation"`
			Status         int       `json:"status"`
		} `json:"calls"`
	} `json:"proxy"`
	AsOf struct {
		Position string `json:"position"`
	} `json:"as_of"`
}

// Run prints the story.
func (b billCommand) Run(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	document, err := c.Get(s.ctx, "/v1/customers/"+url.PathEscape(b.Customer)+"/periods/"+url.PathEscape(b.Period), nil)
	if err != nil {
		return err
	}
	return show(s, document, func(v story) error { return b.tell(s, v) })
}

func (b billCommand) tell(s *shell, v story) error {
	taken := ""
	if v.Bill.Taken != nil {
		taken = ", Stripe took " + v.Bill.Taken.Display
	}
	reason := ""
	if v.Bill.Reason != "" {
		reason = ": " + v.Bill.Reason
	}
	if err := s.printf("%s %s: %s, %s%s%s (as of %s)\n", b.Customer, b.Period, v.Bill.Amount.Display, v.Bill.Status, reason, taken, v.AsOf.Position); err != nil {
		return err
	}
	if d := v.Bill.Dunning; d != nil {
		next := "next: nothing by itself"
		switch {
		case d.NextAttempt > 0:
			next = "next: attempt " + strconv.Itoa(d.NextAttempt) + " at " + moment(d.NextAttemptAt)
		case d.Awaits != "":
			next = "next: waits for the " + strings.ReplaceAll(d.Awaits, "_", " ")
		}
		if err := s.printf("%s: %s\n", next, d.Reason); err != nil {
			return err
		}
	}
	if a := v.Bill.CustomerAction; a != nil {
		if err := s.printf("the customer must %s %s: %s\n", a.Kind, a.IntentID, a.Help); err != nil {
			return err
		}
	}
	facts := console.NewTable("position", "recorded", "fact", "command key", "payload")
	for _, f := range v.Facts {
		facts.Row(f.Position, moment(&f.RecordedAt), f.Type, f.CommandKey, string(f.Payload))
	}
	attempts := console.NewTable("attempt#", "status", "starts#", "key", "intent", "charge", "decline code", "reason")
	for _, a := range v.Attempts {
		attempts.Row(a.Attempt, a.Status, a.Starts, a.Key, a.IntentID, a.ChargeID, a.DeclineCode, a.Reason)
	}
	commands := console.NewTable("command", "key", "decided")
	for _, c := range v.Commands {
		commands.Row(c.Command, c.Key, moment(&c.RecordedAt))
	}
	record := console.NewTable("state", "attempt#", "start#", "intent", "no#", "charge before", "first sent", "last sent", "next try", "fence#")
	if r := v.Record; r != nil {
		record.Row(r.State, r.Attempt, r.Start, r.IntentID, r.IntentNo, r.LatestCharge, moment(r.FirstSentAt), moment(r.LastSentAt), moment(r.NextTryAt), r.Fence)
	}
	saga := console.NewTable("step", "attempt#", "refusal")
	if v.Saga != nil {
		saga.Row(v.Saga.Step, v.Saga.Attempt, v.Saga.Refusal)
	}
	stripe := console.NewTable("object", "id")
	for _, ids := range []struct {
		kind string
		ids  []string
	}{{"customer", v.Stripe.Customers}, {"payment method", v.Stripe.PaymentMethods}, {"intent", v.Stripe.Intents}, {"charge", v.Stripe.Charges}, {"refund", v.Stripe.Refunds}, {"dispute", v.Stripe.Disputes}} {
		for _, id := range ids.ids {
			stripe.Row(ids.kind, id)
		}
	}
	refunds := console.NewTable("refund", "amount#", "state", "charge", "at Stripe", "key", "last sent")
	for _, r := range v.Refunds {
		refunds.Row(r.RefundID, r.Amount.Display, r.State, r.ChargeID, r.StripeRefundID, r.Key, moment(r.LastSentAt))
	}
	webhooks := console.NewTable("received", "event", "type", "by", "state", "note")
	for _, w := range v.Webhooks {
		webhooks.Row(moment(&w.ReceivedAt), w.EventID, w.Type, w.Source, w.State, w.Note)
	}
	verdicts := console.NewTable("at", "", "call", "verdict", "reason", "reserved", "status#", "key", "vault key")
	if v.Proxy != nil {
		for _, c := range v.Proxy.Calls {
			verdict := c.Verdict
			if c.Code != "" {
				verdict += " " + c.Code
			}
			status := ""
			if c.Status != 0 {
				status = strconv.Itoa(c.Status)
			}
			verdicts.Row(moment(&c.At), c.Phase, c.Method+" "+c.Path, verdict, c.Reason, c.Reservation, status, c.IdempotencyKey, c.VaultKey)
		}
	}
	parked := console.NewTable("processor", "position", "fact", "error")
	for _, p := range v.Parked {
		parked.Row(p.Processor, p.Position, p.Type, p.Error)
	}
	for _, part := range []struct {
		title string
		table *console.Table
	}{
		{"facts", facts}, {"commands", commands}, {"attempts", attempts}, {"pre-flight row", record}, {"saga", saga}, {"refunds", refunds},
		{"at Stripe", stripe}, {"Stripe's news", webhooks}, {"the spend proxy's verdicts", verdicts}, {"could not be handled", parked},
	} {
		if part.table.Empty() {
			continue
		}
		if err := s.printf("\n%s\n", part.title); err != nil {
			return err
		}
		if err := part.table.Write(s.Out, "  "); err != nil {
			return err
		}
	}
	if v.Proxy != nil && v.Proxy.Unavailable != "" {
		return s.printf("\nthe spend proxy's verdicts are not to be had: %s\n", v.Proxy.Unavailable)
	}
	return nil
}

// moment is a time as it is shown: to the second, UTC.
func moment(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}
