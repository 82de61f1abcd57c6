package cli

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
)

type (
	auditCalls struct {
		Customer       string `help:"Calls about one customer alone." placeholder:"ID"`
		Period         string `help:"Calls about one billing period alone." placeholder:"PERIOD"`
		Key            string `help:"Calls with one vault key alone." placeholder:"ID"`
		IdempotencyKey string `help:"Calls with one idempotency key alone." placeholder:"KEY"`
		Object         string `help:"Calls about one intent, charge or refund alone." placeholder:"ID"`
		Refused        bool   `help:"What was refused alone, or would have been by a key that enforces."`
		Limit          int    `help:"How many lines at most." default:"100" placeholder:"N"`
	}
	readBooks struct {
		OfRun string `name:"run" help:"Books of one run alone." placeholder:"RUN"`
		Key   string `help:"Books of one vault key alone." placeholder:"ID"`
	}
)

// auditedCall is what is shown of a call: there is a line before it was
// forwarded and one after.
type auditedCall struct {
	At             time.Time `json:"at"`
	Phase          string    `json:"phase"`
	VaultKey       string    `json:"vault_key"`
	Method         string    `json:"method"`
	Path           string    `json:"path"`
	Verdict        string    `json:"verdict"`
	Code           string    `json:"code"`
	Reason         string    `json:"reason"`
	Customer       string    `json:"customer_id"`
	Period         string    `json:"billing_period"`
	Object         string    `json:"object"`
	Amount         int64     `json:"amount_minor"`
	Currency       string    `json:"currency"`
	IdempotencyKey string    `json:"idempotency_key"`
	Reservation    string    `json:"reservation"`
	Status         int       `json:"status"`
	RequestID      string    `json:"request_id"`
}

const auditMost = 10_000

// Run prints the audit.
func (a auditCalls) Run(s *shell) error {
	if a.Limit < 1 || a.Limit > auditMost {
		return usage("--limit must be 1 to %d", auditMost)
	}
	if _, err := keyPath(a.Key, ""); err != nil {
		return err
	}
	query := url.Values{}
	for name, value := range map[string]string{"customer": a.Customer, "period": a.Period, "vault_key": a.Key, "idempotency_key": a.IdempotencyKey, "object": a.Object} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if a.Refused {
		query.Set("refused", "true")
	}
	items, more, err := pages(s, "/admin/v1/audit", "calls", query, a.Limit)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		if err := a.known(s); err != nil {
			return err
		}
	}
	return showList(s, "calls", items, func(calls []auditedCall) error {
		if len(calls) == 0 {
			return s.printf("no calls\n")
		}
		table := console.NewTable("at", "phase", "vault key", "call", "verdict", "code", "customer", "period", "amount#", "object", "reservation", "status", "idempotency key", "request", "why")
		for _, c := range calls {
			amount, status := "", ""
			if c.Currency != "" {
				amount = display(c.Amount, c.Currency)
			}
			if c.Status != 0 {
				status = strconv.Itoa(c.Status)
			}
			table.Row(moment(&c.At), c.Phase, c.VaultKey, c.Method+" "+c.Path, c.Verdict, c.Code, c.Customer, c.Period, amount, c.Object, c.Reservation, status, c.IdempotencyKey, c.RequestID, short(c.Reason, 80))
		}
		if err := table.Write(s.Out, ""); err != nil {
			return err
		}
		if more {
			return s.printf("and more: narrow it down, or raise --limit\n")
		}
		return nil
	})
}

// known is an error if nothing at all is known of what the flags name, so that
// a slip of the pen does not look like a quiet month.
func (a auditCalls) known(s *shell) error {
	if a.Key != "" {
		if _, err := s.vaultKey(a.Key); err != nil {
			return err
		}
	}
	for _, named := range []struct{ parameter, what, value string }{
		{"customer", "customer", a.Customer}, {"idempotency_key", "idempotency key", a.IdempotencyKey}, {"object", "object", a.Object},
	} {
		if named.value == "" {
			continue
		}
		any, _, err := pages(s, "/admin/v1/audit", "calls", url.Values{named.parameter: {named.value}}, 1)
		if err != nil {
			return err
		}
		if len(any) == 0 {
			return fmt.Errorf("no call about the %s %s was ever made", named.what, named.value)
		}
	}
	return nil
}

// Run prints the books.
func (b readBooks) Run(s *shell) error {
	c, err := s.proxy()
	if err != nil {
		return err
	}
	query := url.Values{}
	if b.OfRun != "" {
		query.Set("run", b.OfRun)
	}
	if b.Key != "" {
		if _, err := s.vaultKey(b.Key); err != nil {
			return err
		}
		query.Set("vault_key", b.Key)
	}
	document, err := c.Get(s.ctx, "/admin/v1/books", query)
	if err != nil {
		return err
	}
	return show(s, document, func(v struct {
		Currencies []struct {
			Currency      string `json:"currency"`
			SettledMinor  int64  `json:"settled_minor"`
			Settled       int64  `json:"settled"`
			HeldMinor     int64  `json:"held_minor"`
			Held          int64  `json:"held"`
			RefundedMinor int64  `json:"refunded_minor"`
			Refunded      int64  `json:"refunded"`
		} `json:"currencies"`
	}) error {
		if len(v.Currencies) == 0 {
			return s.printf("nothing was charged\n")
		}
		table := console.NewTable("currency", "charged#", "charges#", "held#", "charges held#", "given back#", "refunds#")
		for _, x := range v.Currencies {
			table.Row(x.Currency, display(x.SettledMinor, x.Currency), x.Settled, display(x.HeldMinor, x.Currency), x.Held, display(x.RefundedMinor, x.Currency), x.Refunded)
		}
		return table.Write(s.Out, "")
	})
}
