package selftest

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// strikes are the lines in which a service says that a point has struck it.
var strikes = regexp.MustCompile(`(?m)^crash point (\S+): this process (?:dies|stops)$`)

// count counts what has really happened in a run: a script only says what was
// to happen, and a point that is never passed strikes nobody.
func (r *run) count(requests []request) {
	r.tally.Points, r.tally.Faults = map[string]int{}, map[string]int{}
	for _, p := range r.replicas {
		said, err := os.ReadFile(r.h.folder.Path(p.name + ".log"))
		if err != nil {
			continue // it never lived
		}
		for _, found := range strikes.FindAllSubmatch(said, -1) {
			r.tally.Points[string(found[1])]++
		}
	}
	for _, q := range requests {
		if q.Fault != "" {
			r.tally.Faults[q.Fault]++
		}
	}
}

// crashPoints are the names of all points, in their order.
func crashPoints() (names []string) {
	for _, p := range crashpoint.Points {
		names = append(names, p.Name)
	}
	return names
}

// sumOf adds counts to those that were there.
func sumOf(to, more map[string]int) map[string]int {
	if to == nil {
		to = map[string]int{}
	}
	for name, n := range more {
		to[name] += n
	}
	return to
}

// counted writes down what is not zero, in the order given.
func counted(counts map[string]int, order []string) string {
	var parts []string
	for _, name := range order {
		if n := counts[name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", name, console.Count(n)))
		}
	}
	return strings.Join(parts, ", ")
}
