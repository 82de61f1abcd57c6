package parts

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// StandIn is the control API of the Stripe stand-in.
type StandIn struct {
	API     string // where it speaks Stripe's API: http://host:port
	Control string // where it is controlled
}

// ClockURL is what services that follow its clock ask.
func (s StandIn) ClockURL() string { return s.Control + "/control/clock" }

// SetClock moves the stand-in's clock.
func (s StandIn) SetClock(ctx context.Context, now time.Time) error {
	return s.Call(ctx, http.MethodPost, "/control/clock", map[string]time.Time{"set": now}, nil)
}

// SlowDown lets the stand-in answer POSTs to some paths later than it executes
// them.
func (s StandIn) SlowDown(ctx context.Context, by time.Duration, paths ...string) error {
	for _, path := range paths {
		err := s.Call(ctx, http.MethodPost, "/control/faults", map[string]any{
			"match": map[string]string{"method": http.MethodPost, "path": path}, "fault": "delay_after_commit", "delay": by.String(), "times": 1 << 30,
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// ClearFaults disarms every fault, SlowDown's too.
func (s StandIn) ClearFaults(ctx context.Context) error {
	return s.Call(ctx, http.MethodDelete, "/control/faults", nil, nil)
}

// Counters are what the stand-in has counted.
type Counters struct {
	UnkeyedPOSTs int64 `json:"unkeyed_posts"`
	Mismatches   int64 `json:"mismatches"`
	Replays      int64 `json:"replays"`
	Conflicts    int64 `json:"conflicts"`
	Creates      int64 `json:"creates"`
	Confirms     int64 `json:"confirms"`

	Requests map[string]int64 `json:"requests"` // by method and path
}

// Calls is how many requests of a method have come, of any if it is "".
func (c Counters) Calls(method string) (n int64) {
	for route, count := range c.Requests {
		if method == "" || strings.HasPrefix(route, method+" ") {
			n += count
		}
	}
	return n
}

// Counters reads what was counted.
func (s StandIn) Counters(ctx context.Context) (c Counters, err error) {
	err = s.Call(ctx, http.MethodGet, "/control/counters", nil, &c)
	return c, err
}

// Ledger reads the movements behind a charge, all of them behind "".
func (s StandIn) Ledger(ctx context.Context, after string) ([]Movement, error) {
	path := "/control/ledger"
	if after != "" {
		path += "?after=" + url.QueryEscape(after)
	}
	var answer struct {
		Movements []Movement `json:"movements"`
	}
	err := s.Call(ctx, http.MethodGet, path, nil, &answer)
	return answer.Movements, err
}

// Call asks the control API: body, if there is one, is sent as JSON, and the
// answer read into a value, unless that is nil.
func (s StandIn) Call(ctx context.Context, method, path string, body, into any) error {
	return call(ctx, "stripesim", method, s.Control, path, "", body, into)
}

// call asks a program's API in JSON. An answer that is not one of success is an
// error with its text.
func call(ctx context.Context, whom, method, base, path, bearer string, body, into any) error {
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("ask %s: %w", whom, err)
		}
		content = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, content)
	if err != nil {
		return fmt.Errorf("ask %s: %w", whom, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask %s: %w", whom, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("ask %s: %w", whom, err)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("ask %s: %s %s answers %s: %s", whom, method, path, res.Status, bytes.TrimSpace(raw))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("ask %s: read the answer of %s: %w", whom, path, err)
	}
	return nil
}
