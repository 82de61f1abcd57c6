package sagas

import (
	"context"
	"fmt"

	"golang.org/x/time/rate"
)

// Allowance is how much may be asked of Stripe, by everybody in this process
// together: it takes so many calls a second of an account, and so many of one
// endpoint (https://docs.stripe.com/rate-limits). Whoever has something to ask
// takes its part before it claims anything, since a lease must not run out in a
// queue; the gateway's wire sees to it that calls do not bunch up after that.
// Nil is no limit.
type Allowance struct {
	calls *rate.Limiter
	bills *rate.Limiter // a bill makes one call to each of two endpoints
}

// callsPerBill is what a bill is reckoned with: create and confirm.
const callsPerBill = 2

// NewAllowance allows calls a second to everything together, and perEndpoint to
// each endpoint; 0 is no limit. A second's worth may be taken at once.
func NewAllowance(calls, perEndpoint float64) *Allowance {
	return &Allowance{limiter(calls, callsPerBill), limiter(perEndpoint, 1)}
}

func limiter(perSecond float64, least int) *rate.Limiter {
	if perSecond <= 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(perSecond), max(int(perSecond), least))
}

// Calls waits until n calls may be made.
func (a *Allowance) Calls(ctx context.Context, n int) error {
	if a == nil {
		return nil
	}
	return wait(ctx, a.calls, n)
}

// Bills waits until n bills may be taken to Stripe.
func (a *Allowance) Bills(ctx context.Context, n int) error {
	if a == nil {
		return nil
	}
	if err := wait(ctx, a.bills, n); err != nil {
		return err
	}
	return wait(ctx, a.calls, callsPerBill*n)
}

// AtOnce is how many bills may be taken without waiting, at most n: claiming
// more would only let leases run.
func (a *Allowance) AtOnce(n int) int {
	if a == nil {
		return n
	}
	if a.bills.Limit() != rate.Inf {
		n = min(n, a.bills.Burst())
	}
	if a.calls.Limit() != rate.Inf {
		n = min(n, a.calls.Burst()/callsPerBill)
	}
	return max(n, 1)
}

func wait(ctx context.Context, l *rate.Limiter, n int) error {
	for l.Limit() != rate.Inf && n > 0 {
		part := min(n, l.Burst())
		if err := l.WaitN(ctx, part); err != nil {
			return fmt.Errorf("wait for Stripe's rate limit: %w", err)
		}
		n -= part
	}
	return nil
}
