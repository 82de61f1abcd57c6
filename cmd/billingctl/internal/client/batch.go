package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Order is a command of a batch.
type Order struct {
	Command string          `json:"command"`
	Key     string          `json:"key,omitempty"`
	Body    json.RawMessage `json:"body"`
}

// Receipt is what the service answers to a command.
type Receipt struct {
	Key      string `json:"key"`
	Stream   string `json:"stream"`
	Version  int    `json:"version"`
	Position string `json:"position"`
	Replayed bool   `json:"replayed"`
}

// Answer is what became of one order: a receipt, or a problem.
type Answer struct {
	Receipt
	Problem *Problem
}

// ErrCutOff reports that a batch was answered in part: what follows is not
// known, and the same orders may be sent again.
var ErrCutOff = errors.New("the answer ended before it was complete")

// Batch dispatches orders by one request and tells each answer as it comes, in
// order, by the index of its order. An error after the first answers leaves
// those as they are.
func (c *Client) Batch(ctx context.Context, orders []Order, answered func(i int, a Answer)) error {
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	encoder.SetEscapeHTML(false)
	for _, o := range orders {
		if err := encoder.Encode(o); err != nil {
			return fmt.Errorf("write a batch: %w", err)
		}
	}
	req, err := c.request(ctx, http.MethodPost, "/v1/commands:batch", nil, &lines)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	res, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(res.Body, answerMost))
		if err != nil {
			return fmt.Errorf("read the answer of billingd: %w", err)
		}
		return problemIn(res.StatusCode, body)
	}
	decoder := json.NewDecoder(res.Body)
	for i := range orders {
		var line struct {
			Line int `json:"line"`
			Receipt
			Problem
		}
		if err := decoder.Decode(&line); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w: %d of %d commands were answered", ErrCutOff, i, len(orders))
		}
		if line.Line != i+1 {
			return fmt.Errorf("read the answer of billingd: line %d where line %d was expected", line.Line, i+1)
		}
		a := Answer{Receipt: line.Receipt}
		if line.Code != "" {
			p := line.Problem
			a.Problem = &p
		}
		answered(i, a)
		if a.Problem != nil && a.Problem.Code == "shutting_down" {
			return fmt.Errorf("%w: the service is stopping", ErrCutOff)
		}
	}
	return nil
}
