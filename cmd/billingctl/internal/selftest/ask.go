package selftest

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// adopt asks every service to take the restored database for its own. It is
// refused until Stripe has been looked at, and once there is nothing to adopt.
func (r *run) adopt(ctx context.Context) {
	if r.adoptAt.IsZero() || time.Now().Before(r.adoptAt) {
		return
	}
	r.adoptAt = time.Now().Add(adoptEvery)
	for _, c := range r.addresses() {
		r.asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, _ = c.Post(ctx, "/v1/environment/adopt", []byte(`{"reason":"restored from before the month"}`))
		})
	}
}

// ask dispatches a command in the background, through whoever answers. A
// refusal is an answer.
func (r *run) ask(ctx context.Context, command string, body map[string]any, key string) {
	raw, err := json.Marshal(body)
	if err != nil {
		return
	}
	addresses := r.addresses()
	r.asking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		for _, c := range addresses {
			if _, _, err := c.Command(ctx, command, key, "", raw); err == nil {
				return
			}
		}
	})
}

// addresses are clients of all services that are up.
func (r *run) addresses() (up []*client.Client) {
	for _, p := range r.replicas {
		address, ok := p.address()
		if !ok {
			continue
		}
		if c, err := client.New(address, r.h.token); err == nil {
			up = append(up, c)
		}
	}
	return up
}

func (r *run) settleBill(ctx context.Context, b row) {
	r.ask(ctx, "settle-billing", map[string]any{"customer_id": b.Customer, "billing_period": period, "reference": "wire " + b.Customer}, "wire-"+b.Customer)
}

// again asks until there is an answer: a point may be reached late, and take a
// service with it that is being asked.
func (r *run) again(ctx context.Context, ask func() error) (err error) {
	for range 10 {
		if err = ask(); err == nil || ctx.Err() != nil {
			return err
		}
		if err := r.pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	return err
}

// someone is a client of a service that is up.
func (r *run) someone(ctx context.Context) (*client.Client, error) {
	var up []*client.Client
	err := parts.AwaitEvery(ctx, tick, upWithin, func() (bool, error) {
		up = r.addresses()
		return len(up) > 0, r.revive(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("no billingd comes up: %w", err)
	}
	return up[0], nil
}
