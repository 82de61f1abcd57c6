package projections_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// Facts that an upcaster has split out of one make the same rows as facts that
// stand one after the other, whether a page brings them once or again.
func TestSplitFactsMakeTheSameRows(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	rapid.Check(t, func(rt *rapid.T) {
		facts := lawful(rt, "ada")
		seed := rapid.Uint64().Draw(rt, "seed")
		p := rapid.SampledFrom(projections.All()).Draw(rt, "projection")
		lone := p.Name == projections.Charges.Name || p.Name == projections.Refunds.Name
		apart, split := splitBy(rand.New(rand.NewPCG(5, seed)), facts, lone)
		first := map[int64]int64{} // a place apart: the place of what it was split from
		for i, e := range apart {
			first[e.Position] = split[i].Position
		}
		rows := func(pages ...[]eventstore.Recorded) string {
			l := log.Cleared(rt)
			for _, page := range pages {
				if err := pgx.BeginFunc(t.Context(), l.Pool, func(tx pgx.Tx) error { return p.Fold(t.Context(), tx, page) }); err != nil {
					rt.Fatal(err)
				}
			}
			return l.Rows(p)
		}
		want := place.ReplaceAllStringFunc(rows(apart), func(s string) string {
			at, _ := strconv.ParseInt(s, 10, 64)
			return fmt.Sprint(first[at])
		})
		var oneByOne [][]eventstore.Recorded
		for i, e := range split {
			if e.Part == 0 {
				oneByOne = append(oneByOne, nil)
			}
			last := len(oneByOne) - 1
			oneByOne[last] = append(oneByOne[last], split[i])
		}
		for way, pages := range map[string][][]eventstore.Recorded{"in one page": {split}, "twice": {split, split}, "one by one": oneByOne, "one by one and again": append(oneByOne, split)} {
			if got := rows(pages...); got != want {
				rt.Fatalf("%s, split, delivered %s:\n%s\napart:\n%s", p.Name, way, got, want)
			}
		}
	})
}

// splitBy makes events of facts: one a fact, and some facts an event. Charges and
// refunds are listed by the places where they began, so that a split has one at most: with
// lone no event has two facts of a bill.
func splitBy(random *rand.Rand, facts []domain.Event, lone bool) (apart, split []eventstore.Recorded) {
	for i := 0; i < len(facts); {
		parts, bills := 0, 0
		for most := 1 + random.IntN(3); parts < most && i+parts < len(facts); parts++ {
			if _, _, about := domain.BillOf(facts[i+parts]); about {
				bills++
			}
			if lone && bills > 1 {
				break
			}
			apart = append(apart, recordedAt(facts[i+parts], i+1, i+parts+1, 0))
			split = append(split, recordedAt(facts[i+parts], i+1, i+1, parts))
		}
		i += parts
	}
	return apart, split
}

// place finds the positions of these tests in a dump of rows.
var place = regexp.MustCompile(`\b77\d{7}\b`)

func recordedAt(e domain.Event, version, position, part int) eventstore.Recorded {
	return eventstore.Recorded{
		Place:  eventstore.Place{Partition: eventstore.PartitionOf("ada"), Position: 770_000_000 + int64(position)},
		Stream: domain.CustomerID("ada").Stream(), Version: version, Type: e.EventName(), SchemaVersion: 1, SequenceKey: "ada",
		RecordedAt: noon, Event: e, Part: part,
	}
}
