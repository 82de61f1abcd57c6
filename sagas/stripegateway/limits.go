package stripegateway

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limits keep calls apart on their way to Stripe, which counts all of an
// account's and those of each endpoint (https://docs.stripe.com/rate-limits).
// Half a second's worth may leave at once: what the network bunches up still
// fits Stripe's own buckets.
type limits struct {
	all         *rate.Limiter
	perEndpoint float64
	most        time.Duration // that a call waits

	mu        sync.Mutex
	endpoints map[string]*rate.Limiter
}

// errNoRoom: the call would have to wait too long.
var errNoRoom = errors.New("Stripe's rate limit leaves no room for the call")

func newLimits(all, perEndpoint float64, most time.Duration) *limits {
	return &limits{all: bucket(all), perEndpoint: perEndpoint, most: most, endpoints: map[string]*rate.Limiter{}}
}

func bucket(perSecond float64) *rate.Limiter {
	if perSecond <= 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(perSecond), max(int(perSecond/2), 1))
}

// endpoint is a call's method and path without the object's id.
func (c *call) endpoint() string {
	parts := strings.SplitN(strings.TrimPrefix(c.path, "/v1/"), "/", 3)
	if len(parts) > 1 {
		parts[1] = "*"
	}
	return c.method + " " + strings.Join(parts, "/")
}

func (l *limits) of(endpoint string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.endpoints[endpoint]
	if b == nil {
		b = bucket(l.perEndpoint)
		l.endpoints[endpoint] = b
	}
	return b
}

// wait returns when the call may leave. It returns errNoRoom at once if that is
// too far away.
func (l *limits) wait(ctx context.Context, c *call) error {
	now := time.Now()
	all, one := l.all.ReserveN(now, 1), l.of(c.endpoint()).ReserveN(now, 1)
	giveUp := func(err error) error {
		all.Cancel()
		one.Cancel()
		return err
	}
	delay := max(all.DelayFrom(now), one.DelayFrom(now))
	switch {
	case delay == 0:
		return nil
	case delay > l.most:
		return giveUp(errNoRoom)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return giveUp(ctx.Err())
	}
}
