package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// account asks both sides what happened.
func (r *run) account(ctx context.Context, open string) (e evidence, err error) {
	e.customers, e.open, e.leaps = r.h.customers, open, r.leaps
	if e.rows, err = r.rows(ctx); err != nil {
		return e, err
	}
	if err := r.query(ctx, `SELECT coalesce(array_agg(payload->>'customer_id'), '{}') FROM events WHERE event_type = 'bill.settled.v1'`, &e.settled); err != nil {
		return e, err
	}
	if err := r.again(ctx, func() error { return r.books(ctx, &e) }); err != nil && open == "" {
		return e, err
	}
	if e.movements, err = r.stand.Ledger(ctx, ""); err != nil {
		return e, err
	}
	if e.counters, err = r.stand.Counters(ctx); err != nil {
		return e, err
	}
	e.requests, err = r.requests(ctx)
	r.tally.Charges, r.tally.Requests = len(e.movements), len(e.requests)
	return e, err
}

func (r *run) requests(ctx context.Context) ([]request, error) {
	var answer struct {
		Requests []request `json:"requests"`
	}
	err := r.stand.Call(ctx, http.MethodGet, "/control/requests?limit=1000000", nil, &answer)
	return answer.Requests, err
}

// books reads the service's own.
func (r *run) books(ctx context.Context, e *evidence) error {
	c, err := r.someone(ctx)
	if err != nil {
		return err
	}
	if err := caughtUp(ctx, c, askWithin); err != nil {
		return err
	}
	var charges struct {
		Items []charge `json:"items"`
	}
	if err := c.Read(ctx, "/v1/charges", url.Values{"period": {period}, "limit": {"500"}}, &charges); err != nil {
		return fmt.Errorf("read the service's books: %w", err)
	}
	var totals struct {
		Totals []struct {
			Currency string `json:"currency"`
			Taken    struct {
				Minor int64 `json:"minor"`
			} `json:"taken"`
		} `json:"totals"`
	}
	if err := c.Read(ctx, "/v1/runs/"+period, nil, &totals); err != nil {
		return fmt.Errorf("read the service's books: %w", err)
	}
	e.charges, e.taken = charges.Items, map[string]int64{}
	for _, t := range totals.Totals {
		e.taken[t.Currency] = t.Taken.Minor
	}
	return nil
}

// replay takes the tokens away from every processor that can lead to a call,
// and says what came of it: nothing may.
func (r *run) replay(ctx context.Context) (came []string, err error) {
	count := func() (posts, facts int, err error) {
		all, err := r.requests(ctx)
		if err != nil {
			return 0, 0, err
		}
		for _, q := range all {
			if q.Method == http.MethodPost {
				posts++
			}
		}
		err = r.query(ctx, `SELECT count(*) FROM events`, &facts)
		return posts, facts, err
	}
	// A bill may be found paid while a worker still has it in hand; what that one
	// sends is not the replay's.
	if err := r.again(ctx, func() error { return r.idle(ctx) }); err != nil {
		return nil, err
	}
	posts, facts, err := count()
	if err != nil {
		return nil, err
	}
	if _, err := r.exec(ctx, `DELETE FROM processor_tokens WHERE processor IN ('billing', 'preflight', 'schedule')`); err != nil {
		return nil, err
	}
	var back bool
	err = parts.AwaitEvery(ctx, look, upWithin, func() (bool, error) {
		err := r.query(ctx, `SELECT count(DISTINCT processor) = 3 FROM processor_tokens WHERE processor IN ('billing', 'preflight', 'schedule') AND position > 0`, &back)
		return back, errors.Join(err, r.revive(ctx))
	})
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	err = r.again(ctx, func() error {
		c, err := r.someone(ctx)
		if err != nil {
			return err
		}
		return caughtUp(ctx, c, askWithin)
	})
	if err != nil {
		return nil, err
	}
	postsNow, factsNow, err := count()
	if postsNow != posts {
		came = append(came, fmt.Sprintf("a replay of the processors led to %d POSTs", postsNow-posts))
	}
	if factsNow != facts {
		came = append(came, fmt.Sprintf("a replay of the processors led to %d facts", factsNow-facts))
	}
	return came, err
}

// idle waits until no service has a bill in hand.
func (r *run) idle(ctx context.Context) error {
	var busy float64
	err := parts.AwaitEvery(ctx, look, askWithin, func() (bool, error) {
		busy = 0
		for _, p := range r.replicas {
			address, ok := p.address()
			if !ok {
				continue
			}
			measured, err := parts.ReadMetrics(ctx, address)
			if err != nil {
				return false, err
			}
			busy += measured[`billonce_bills_in_flight`]
		}
		return busy == 0, r.revive(ctx)
	})
	if err != nil {
		return fmt.Errorf("%.0f bills are still in hand: %w", busy, err)
	}
	return nil
}

// keepRequests writes down what came to the stand-in in a run that was wrong, a
// line each.
func (h *house) keepRequests(seed uint64, requests []request) {
	var lines bytes.Buffer
	out := json.NewEncoder(&lines)
	for _, q := range requests {
		_ = out.Encode(q) // plain values
	}
	_ = os.WriteFile(h.folder.Path(fmt.Sprintf("run-%d-stripe.log", seed)), lines.Bytes(), 0o600) // the verdict is told all the same
}

// forgetLogs removes the logs of a run that was right.
func (h *house) forgetLogs(seed uint64) {
	logs, err := filepath.Glob(h.folder.Path(fmt.Sprintf("run-%d-*.log", seed)))
	if err != nil {
		return
	}
	for _, path := range logs {
		_ = os.Remove(path)
	}
}
