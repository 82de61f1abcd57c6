package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// standIn is the control API of the Stripe stand-in.
type standIn struct {
	api     string // where it speaks Stripe's API
	control string
}

func (s standIn) clockURL() string { return s.control + "/control/clock" }

// setClock moves the stand-in's clock.
func (s standIn) setClock(ctx context.Context, now time.Time) error {
	return s.call(ctx, http.MethodPost, "/control/clock", map[string]time.Time{"set": now}, nil)
}

// slowDown lets the stand-in answer confirms later than it executes them.
func (s standIn) slowDown(ctx context.Context, by time.Duration) error {
	return s.call(ctx, http.MethodPost, "/control/faults", map[string]any{
		"match": map[string]string{"path": "/v1/payment_intents/*/confirm"}, "fault": "delay_after_commit", "delay": by.String(), "times": 1 << 30,
	}, nil)
}

// speedUp undoes slowDown.
func (s standIn) speedUp(ctx context.Context) error {
	return s.call(ctx, http.MethodDelete, "/control/faults", nil, nil)
}

// counters are what the stand-in has counted.
type counters struct {
	UnkeyedPOSTs int64 `json:"unkeyed_posts"`
	Mismatches   int64 `json:"mismatches"`
	Replays      int64 `json:"replays"`
	Conflicts    int64 `json:"conflicts"`
	Creates      int64 `json:"creates"`
	Confirms     int64 `json:"confirms"`
}

func (s standIn) counters(ctx context.Context) (c counters, err error) {
	err = s.call(ctx, http.MethodGet, "/control/counters", nil, &c)
	return c, err
}

// ledger reads the movements behind a charge, all of them behind "".
func (s standIn) ledger(ctx context.Context, after string) ([]movement, error) {
	path := "/control/ledger"
	if after != "" {
		path += "?after=" + url.QueryEscape(after)
	}
	var answer struct {
		Movements []movement `json:"movements"`
	}
	err := s.call(ctx, http.MethodGet, path, nil, &answer)
	return answer.Movements, err
}

func (s standIn) call(ctx context.Context, method, path string, body, into any) error {
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("ask stripesim: %w", err)
		}
		content = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.control+path, content)
	if err != nil {
		return fmt.Errorf("ask stripesim: %w", err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask stripesim: %w", err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("ask stripesim: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("ask stripesim: %s %s answers %s: %s", method, path, res.Status, bytes.TrimSpace(raw))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("ask stripesim: read the answer of %s: %w", path, err)
	}
	return nil
}

// ledgerReader follows the ledger.
type ledgerReader struct {
	stand     standIn
	movements []movement
	charged   map[string]bool // customers, by their names at Stripe
}

// newLedgerReader follows the ledger from its end after what was there before.
func newLedgerReader(s standIn, before []movement) *ledgerReader {
	return &ledgerReader{stand: s, movements: before, charged: map[string]bool{}}
}

// read takes in what is new, and reports whether there was anything.
func (l *ledgerReader) read(ctx context.Context) (more bool, err error) {
	after := ""
	if n := len(l.movements); n > 0 {
		after = l.movements[n-1].Charge
	}
	fresh, err := l.stand.ledger(ctx, after)
	if err != nil {
		return false, err
	}
	l.movements = append(l.movements, fresh...)
	for _, m := range fresh {
		if m.moved() {
			l.charged[m.Customer] = true
		}
	}
	return len(fresh) > 0, nil
}
