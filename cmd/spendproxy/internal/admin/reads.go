package admin

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/domain"
)

const (
	limitDefault = 100
	limitMost    = 500
)

func limitOf(query url.Values) (int, error) {
	given := query.Get("limit")
	if given == "" {
		return limitDefault, nil
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 || n > limitMost {
		return 0, invalid("the parameter limit must be 1 to %d", limitMost)
	}
	return n, nil
}

func boolean(query url.Values, name string) (bool, error) {
	switch query.Get(name) {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, invalid("the parameter %s must be true or false", name)
}

// audit is a page of what callers asked for and what became of it.
func (s *server) audit(c call) (answer, error) {
	limit, err := limitOf(c.query)
	if err != nil {
		return answer{}, err
	}
	q := c.query
	f := ledger.CallFilter{Customer: q.Get("customer"), Period: q.Get("period"), VaultKey: q.Get("vault_key"), IdempotencyKey: q.Get("idempotency_key"),
		Object: q.Get("object"), After: q.Get("after"), Limit: limit}
	if f.Refused, err = boolean(q, "refused"); err != nil {
		return answer{}, err
	}
	if f.Customer != "" {
		if _, err := domain.ParseCustomerID(f.Customer); err != nil {
			return answer{}, invalid("the parameter customer %s", reason(err))
		}
	}
	if f.Period != "" {
		if _, err := domain.ParsePeriod(f.Period); err != nil {
			return answer{}, invalid("the parameter period %s", reason(err))
		}
	}
	if err := noBody(c.r); err != nil {
		return answer{}, err
	}
	calls, next, err := s.ledger.Calls(c.r.Context(), f)
	if err != nil {
		return answer{}, fmt.Errorf("read the audit: %w", err)
	}
	page := struct {
		Calls []callView `json:"calls"`
		Next  string     `json:"next,omitempty"`
	}{Calls: make([]callView, 0, len(calls)), Next: next}
	for _, r := range calls {
		page.Calls = append(page.Calls, viewCall(r))
	}
	return ok(page), nil
}

// reason is what a parser of the domain says against its value, without the
// name of the field that it takes it for.
func reason(err error) string {
	if e, ok := errors.AsType[*domain.Error](err); ok && len(e.Fields) > 0 {
		return e.Fields[0].Msg
	}
	return err.Error()
}

// books are what keys have promised and spent, per currency.
func (s *server) books(c call) (answer, error) {
	if err := noBody(c.r); err != nil {
		return answer{}, err
	}
	sums, err := s.ledger.Books(c.r.Context(), ledger.BooksFilter{VaultKey: c.query.Get("vault_key"), Run: c.query.Get("run")})
	if err != nil {
		return answer{}, fmt.Errorf("read the books: %w", err)
	}
	all := make([]sumView, 0, len(sums))
	for _, b := range sums {
		all = append(all, sumView{b.Currency, b.Settled, b.SettledCount, b.Held, b.HeldCount, b.Refunded, b.RefundedCount, b.RefundsHeld, b.RefundsHeldCount})
	}
	return ok(map[string][]sumView{"currencies": all}), nil
}

// release gives up a reservation on an operator's word.
func (s *server) release(c call) (answer, error) {
	o, err := s.readObject(c)
	if err != nil {
		return answer{}, err
	}
	reason := o.prose("reason")
	if err := o.done(); err != nil {
		return answer{}, err
	}
	if err := s.ledger.Release(c.r.Context(), c.name, reason, c.who.name); err != nil {
		return answer{}, fmt.Errorf("release %s: %w", c.name, err)
	}
	s.log.InfoContext(c.r.Context(), "a reservation was released", slog.String("subject", c.name), slog.String("by", c.who.name), slog.String("reason", reason))
	return ok(map[string]string{"subject": c.name, "reservation": "released"}), nil
}
