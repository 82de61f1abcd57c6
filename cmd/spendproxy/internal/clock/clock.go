// Package clock follows the clock of a Stripe stand-in as business time, so that
// caps, expiries and quiet periods can be shown without waiting for them. In
// production the database's clock is business time and this package is not
// used; a live Stripe key refuses it.
package clock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// stale is how old a reading may be: a move of the clock is noticed within it.
const stale = 250 * time.Millisecond

// Clock reads GET url, which answers {"now": RFC 3339}. It is safe for
// concurrent use: whoever asks while a reading is under way waits for it.
type Clock struct {
	url    string
	client *http.Client

	mu   sync.Mutex
	now  time.Time // as read
	read time.Time // on the machine's clock
}

// New returns a clock. It makes no call.
func New(url string) *Clock {
	return &Clock{url: url, client: &http.Client{Timeout: 5 * time.Second}}
}

// Now is the time there, which goes on between readings. An error means that
// it cannot be told.
func (c *Clock) Now(ctx context.Context) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := time.Since(c.read); !c.read.IsZero() && age < stale {
		return c.now.Add(age), nil
	}
	asked := time.Now()
	now, err := c.ask(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the stand-in's clock: %w", err)
	}
	c.now, c.read = now, asked
	return now.Add(time.Since(asked)), nil
}

func (c *Clock) ask(ctx context.Context) (time.Time, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return time.Time{}, errors.New("its address cannot be used")
	}
	answer, err := c.client.Do(r)
	if err != nil {
		return time.Time{}, err
	}
	defer answer.Body.Close()
	var body struct {
		Now time.Time `json:"now"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, answer.Body, 4096)).Decode(&body); err != nil {
		return time.Time{}, errors.New("its answer cannot be read")
	}
	if answer.StatusCode != http.StatusOK || body.Now.IsZero() {
		return time.Time{}, errors.New("its answer has no time in it")
	}
	return body.Now.UTC(), nil
}
