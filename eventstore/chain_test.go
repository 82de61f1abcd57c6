package eventstore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Each way in which a stream may be damaged has its words, and is told once.
func TestChainTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := mustAppend(t, s, batch("acme", eventstore.Head{}, "k", moved("acme", 1), moved("acme", 2), moved("acme", 3), moved("acme", 4), moved("acme", 5)))
	for name, test := range map[string]struct {
		part   bool
		change func([]eventstore.Recorded) []eventstore.Recorded
		want   string
	}{
		"nothing":    {false, func(e []eventstore.Recorded) []eventstore.Recorded { return e }, ""},
		"a payload":  {false, func(e []eventstore.Recorded) []eventstore.Recorded { e[1].Payload = []byte(`{}`); return e }, "2 chain: its digest does not cover"},
		"a type":     {false, func(e []eventstore.Recorded) []eventstore.Recorded { e[1].Type = "x.v1"; return e }, "2 chain: its digest does not cover"},
		"no digest":  {false, func(e []eventstore.Recorded) []eventstore.Recorded { e[4].Digest = nil; return e }, "5 chain: its digest does not cover"},
		"one hole":   {false, func(e []eventstore.Recorded) []eventstore.Recorded { return append(e[:2], e[3:]...) }, "4 version: version 3 is missing before it"},
		"two holes":  {false, func(e []eventstore.Recorded) []eventstore.Recorded { return append(e[:1], e[3:]...) }, "4 version: versions 2 to 3 are missing before it"},
		"no begin":   {false, func(e []eventstore.Recorded) []eventstore.Recorded { return e[1:] }, "2 version: version 1 is missing before it"},
		"a part":     {true, func(e []eventstore.Recorded) []eventstore.Recorded { return e[1:] }, ""},
		"twice":      {false, func(e []eventstore.Recorded) []eventstore.Recorded { return append(e, e[4]) }, "5 version: it comes after version 5"},
		"partition":  {false, func(e []eventstore.Recorded) []eventstore.Recorded { e[2].Partition ^= 1; return e }, "3 partition: it stands in partition"},
		"sequence":   {false, func(e []eventstore.Recorded) []eventstore.Recorded { e[2].SequenceKey = "other"; return e }, `3 partition: it stands in partition`},
		"part, hole": {true, func(e []eventstore.Recorded) []eventstore.Recorded { return append(e[1:2], e[3:]...) }, "4 version: version 3 is missing before it"},
	} {
		chain := eventstore.Chain{Part: test.part}
		var told []string
		for _, e := range test.change(append([]eventstore.Recorded{}, r.Recorded...)) {
			for _, f := range chain.Follow(e) {
				told = append(told, fmt.Sprintf("%d %s: %s", e.Version, f.Kind, f.Detail))
			}
		}
		if text := strings.Join(told, "\n"); !strings.HasPrefix(text, test.want) || (test.want == "") != (text == "") || len(told) > 1 {
			t.Errorf("%s: told %q, want %q", name, text, test.want)
		}
		if head := chain.Head("customer/acme"); head.Version != 5 || chain.Streams() != 1 {
			t.Errorf("%s: the head is %+v of %d streams", name, head, chain.Streams())
		}
	}
}

// A partition is read in order, from where one likes, and alone.
func TestReadPartition(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	heads := map[int]eventstore.Head{}
	for n := range 3 * eventstore.Partitions {
		c := domain.CustomerID(fmt.Sprint("c", n%5))
		r := mustAppend(t, s, batch(c, heads[n%5], "", moved(c, n)))
		heads[n%5] = eventstore.HeadOf(r)
	}
	total := 0
	for p := range int16(eventstore.Partitions) {
		last, middle, n := int64(0), int64(0), 0
		for e, err := range s.ReadPartition(t.Context(), s.Pool(), p, 0) {
			if err != nil || e.Partition != p || e.Position <= last || e.Event == nil {
				t.Fatalf("partition %d: %+v after %d, %v", p, e, last, err)
			}
			if last = e.Position; n == 7 {
				middle = last
			}
			n++
		}
		total += n
		for e, err := range s.ReadPartition(t.Context(), s.Pool(), p, middle) {
			if err != nil || e.Position <= middle {
				t.Fatalf("partition %d after %d: %+v, %v", p, middle, e, err)
			}
			break
		}
	}
	if total != 3*eventstore.Partitions {
		t.Errorf("read %d events", total)
	}
	for e, err := range s.ReadRaw(t.Context(), s.Pool(), 0) {
		if err != nil || e.Event != nil || len(e.Payload) == 0 {
			t.Fatalf("raw: %+v, %v", e, err)
		}
	}
}
