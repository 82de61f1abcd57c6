package eventstore_test

import (
	"testing"

	"github.com/billonce/billonce/eventstore"
)

// A reader is told of the partitions that grew by what it wants, and of no other.
func TestGrowth(t *testing.T) {
	t.Parallel()
	added := eventstore.Growth{"billing.due.v1": 0b0011}
	added.Add(eventstore.Growth{"billing.due.v1": 0b1000, "charge.requested.v1": 0b0110})
	for _, c := range []struct {
		skips []string
		want  uint64
	}{
		{nil, 0b1111},
		{[]string{"customer.billed.v1"}, 0b1111},
		{[]string{"billing.due.v1"}, 0b0110},
		{[]string{"charge.requested.v1"}, 0b1011},
		{[]string{"charge.requested.v1", "billing.due.v1"}, 0},
	} {
		if got := added.But(c.skips); got != c.want {
			t.Errorf("but %q: %b, want %b", c.skips, got, c.want)
		}
	}
	if got := added.Partitions(); got != 0b1111 {
		t.Errorf("grown %b", got)
	}
}
