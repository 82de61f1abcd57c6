package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// How doubts are read at Stripe: so many at a time and a second that the
// account's allowance of reads is hardly touched.
const (
	doubtsEvery = 2 * time.Second
	doubtsRound = 50
	readsSecond = 5
	maxPages    = 50 // of a list; what is not found in it is looked for again
	slack       = time.Hour
)

// Run reads at Stripe what has been held for its quiet time, until ctx ends. It
// returns nil.
func (p *Proxy) Run(ctx context.Context) error {
	r := &reader{p: p, limit: rate.NewLimiter(readsSecond, readsSecond), patience: make(map[string]wait)}
	tick := time.NewTicker(doubtsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := r.settle(ctx); err != nil && ctx.Err() == nil {
			p.log.Warn("what is held could not be looked up; it is tried again", "error", err)
		}
	}
}

// reader reads at Stripe what only Stripe can settle.
type reader struct {
	p        *Proxy
	limit    *rate.Limiter
	patience map[string]wait // of a subject that was read in vain
}

// wait is how long a subject is left alone, on the machine's clock.
type wait struct {
	until time.Time
	next  time.Duration
}

const (
	maxWait     = 10 * time.Minute
	maxPatience = 10_000
)

// settle reads every doubt whose turn it is.
func (r *reader) settle(ctx context.Context) error {
	doubts, err := r.p.ledger.Doubts(ctx, doubtsRound)
	if err != nil {
		return fmt.Errorf("list what is held: %w", err)
	}
	if len(r.patience) > maxPatience {
		clear(r.patience)
	}
	for _, d := range doubts {
		w := r.patience[d.Subject]
		if time.Now().Before(w.until) {
			continue
		}
		w.next = min(max(2*w.next, doubtsEvery), maxWait)
		r.patience[d.Subject] = wait{until: time.Now().Add(w.next), next: w.next}
		if err := r.resolve(ctx, d); err != nil {
			r.p.metrics.fetched.WithLabelValues("failed").Inc()
			return fmt.Errorf("look up %s: %w", d.Subject, err)
		}
		r.p.metrics.fetched.WithLabelValues("read").Inc()
	}
	return nil
}

// resolve reads one doubt: the object itself if its id is known, else whatever
// may be its trace. A list that does not show it proves nothing.
func (r *reader) resolve(ctx context.Context, d ledger.Doubt) error {
	for _, id := range []string{d.Intent, d.Charge, d.Refund} {
		if c, ok := reading(id); ok {
			_, err := r.see(ctx, c)
			return err
		}
	}
	since := policy.Pair{Name: "created[gte]", Value: strconv.FormatInt(d.Since.Add(-slack).Unix(), 10)}
	if d.StripeCustomer != "" {
		if err := r.pages(ctx, "/v1/charges", policy.ChargesRead, since, policy.Pair{Name: "customer", Value: d.StripeCustomer}); err != nil {
			return err
		}
	}
	// An event tells which Idempotency-Key caused it.
	return r.pages(ctx, "/v1/events", policy.EventsRead, since,
		policy.Pair{Name: "types[]", Value: "charge.succeeded"}, policy.Pair{Name: "types[]", Value: "refund.created"},
		policy.Pair{Name: "types[]", Value: "payment_intent.succeeded"})
}

// pages reads a list to its end.
func (r *reader) pages(ctx context.Context, path string, rule policy.Rule, filters ...policy.Pair) error {
	for after, n := "", 0; n < maxPages; n++ {
		query := append([]policy.Pair{{Name: "limit", Value: "100"}}, filters...)
		if after != "" {
			query = append(query, policy.Pair{Name: "starting_after", Value: after})
		}
		body, err := r.see(ctx, policy.Listing(path, rule, query))
		if err != nil {
			return err
		}
		var page struct {
			Data []struct {
				ID string `json:"id"`
			} `json:"data"`
			More bool `json:"has_more"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return errors.New("the answer is not a page")
		}
		if !page.More || len(page.Data) == 0 || page.Data[len(page.Data)-1].ID == after {
			return nil
		}
		after = page.Data[len(page.Data)-1].ID
	}
	return nil
}

// see makes a read of the proxy's own and lets the ledger see what it shows.
func (r *reader) see(ctx context.Context, c policy.Call) (body []byte, err error) {
	if err := r.limit.Wait(ctx); err != nil {
		return nil, err
	}
	got := r.p.stripe.send(ctx, c)
	seen := policy.ReadEvidence(c, got.status, got.body)
	switch {
	case got.fate != ledger.Answered:
		return nil, errors.New("no answer came")
	case got.status != http.StatusOK && len(seen) == 0:
		return nil, fmt.Errorf("the answer is %d (%s)", got.status, got.requestID)
	case len(seen) > 0:
		ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
		defer cancel()
		if err := r.p.ledger.Observe(ctx, seen); err != nil {
			return nil, err
		}
	}
	return got.body, nil
}
