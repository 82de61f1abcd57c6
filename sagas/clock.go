package sagas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Clock is business time: due times, safe windows, quiet periods. It follows a
// source (the database, or the stand-in's clock) by its offset to this
// machine's monotonic clock, so that asking is cheap and the machine's own
// idea of the date never matters. Leases and back-offs do not use it: they are
// the database's, in SQL.
type Clock struct {
	sample func(context.Context) (time.Time, error)
	maxAge time.Duration

	mu     sync.Mutex
	now    time.Time // as sampled
	taken  time.Time // when, here
	asking sync.Mutex
}

// NewClock follows a source, asking it again when the last answer is older
// than maxAge.
func NewClock(sample func(context.Context) (time.Time, error), maxAge time.Duration) *Clock {
	return &Clock{sample: sample, maxAge: maxAge}
}

// Now is business time, UTC. It must not be called while a transaction is
// open: it may ask its source. It fails if the source cannot be asked.
func (c *Clock) Now(ctx context.Context) (time.Time, error) {
	if now, ok := c.known(); ok {
		return now, nil
	}
	c.asking.Lock() // one question at a time; who waited finds the answer
	defer c.asking.Unlock()
	if now, ok := c.known(); ok {
		return now, nil
	}
	now, err := c.sample(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the business clock: %w", err)
	}
	c.mu.Lock()
	c.now, c.taken = now.UTC(), time.Now()
	c.mu.Unlock()
	return now.UTC(), nil
}

func (c *Clock) known() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	age := time.Since(c.taken)
	return c.now.Add(age), !c.taken.IsZero() && age <= c.maxAge
}

// DatabaseClock asks the database for the time.
func DatabaseClock(pool *pgxpool.Pool) *Clock {
	return NewClock(func(ctx context.Context) (now time.Time, err error) {
		err = pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
		return now, err
	}, 10*time.Second)
}

// ControlClock follows the clock of a Stripe stand-in: GET url answers
// {"now": RFC 3339}. Its moves are noticed within a fifth of a second.
func ControlClock(url string) *Clock {
	client := &http.Client{Timeout: 5 * time.Second}
	return NewClock(func(ctx context.Context) (time.Time, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return time.Time{}, err
		}
		res, err := client.Do(req)
		if err != nil {
			return time.Time{}, err
		}
		defer res.Body.Close()
		var answer struct {
			Now time.Time `json:"now"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(nil, res.Body, 4096)).Decode(&answer); err != nil {
			return time.Time{}, err
		}
		if res.StatusCode != http.StatusOK || answer.Now.IsZero() {
			return time.Time{}, errors.New("the clock's answer has no time in it")
		}
		return answer.Now, nil
	}, 200*time.Millisecond)
}
