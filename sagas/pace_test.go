package sagas

import (
	"testing"
	"time"
)

// Where Stripe answers fast, claims wait until a quarter of the slots is free,
// and share transactions; where it answers slowly, no slot stands idle for long.
func TestSlotsAreFilledAgain(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		name     string
		call     time.Duration
		inFlight int
		since    time.Duration
		want     time.Duration
	}{
		{"nothing is in flight", 0, 0, 0, 0},
		{"all slots are taken", 300 * ms, 64, time.Minute, slotWait},
		{"a quarter is free", 10 * ms, 48, 0, 0},
		{"fast calls, few are free", 10 * ms, 60, time.Minute, slotWait},
		{"slow calls, few are free, claimed just now", 300 * ms, 60, 5 * ms, 15 * ms},
		{"slow calls, few are free for a while", 300 * ms, 60, 20 * ms, 0},
		{"slow calls, one is free for a while", 300 * ms, 63, time.Second, 0},
	} {
		p := pace{limit: 64, most: 64}
		for range 200 {
			p.took(c.call)
		}
		if got := p.wait(c.inFlight, c.since); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
