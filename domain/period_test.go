package domain_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
)

// period is a period by its spelling.
func period(s string) domain.Period {
	p, err := domain.ParsePeriod(s)
	if err != nil {
		panic(err)
	}
	return p
}

func TestPeriodHasOneSpelling(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"2026-01", "2026-11", "2026-12", "2026-Q1", "2026-Q4", "2026", "2000", "2000-01", "9999-12"} {
		p, err := domain.ParsePeriod(s)
		if err != nil {
			t.Errorf("%q: %v", s, err)
		}
		if p.String() != s {
			t.Errorf("%q is spelled %q", s, p)
		}
	}
	for _, s := range []string{
		"", " ", "-", "2026-", "-01", "2026-1", " 2026-01", "2026-01 ", "2026-01\n", "2026-001", "2026-01-01", "2026-13", "2026-00",
		"0000-01", "1999-12", "1999", "0999", "26-01", "20260-1", "202601", "2026/01", "2026.01", "2026_01", "2026–01", "2026-01Z",
		"2026-01T00:00", "2026-01+02:00", "2026-01[Europe/Berlin]", "２０２６-01", "2026-０１", "٢٠٢٦-01", "2026-1a", "2026-+1", "+026-01", "-026-01",
		"Q1-2026", "2026-q1", "2026-Q0", "2026-Q5", "2026-Q", "2026-Q11", "2026Q1", "2026-QA", "2026-W01", "2026-H1", "Jan 2026", "January",
		"2026-01:axon-billing", "2026-01\x00", "null", "0x7ea-01", "2e3", strings.Repeat("2026-01", 1000),
	} {
		p, err := domain.ParsePeriod(s)
		refused(t, err, "billing_period")
		if !p.IsZero() {
			t.Errorf("%q is refused and still gives %s", s, p)
		}
	}
}

// Whatever is accepted is the spelling itself: nothing is trimmed, folded or
// mapped to another period.
func TestPeriodIsNeverNormalised(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(
			rapid.StringMatching(`[0-9]{1,5}(-?Q?[0-9]{0,3})?`),
			rapid.StringMatching(`20[0-9]{2}-[0-9QW ]{0,3}`),
			rapid.String(),
		).Draw(t, "spelling")
		if p, err := domain.ParsePeriod(s); err == nil && p.String() != s {
			t.Fatalf("%q is accepted as %s", s, p)
		}
	})
}

func TestPeriodAsText(t *testing.T) {
	t.Parallel()
	type held struct {
		P domain.Period `json:"p"`
	}
	for _, s := range []string{"2026-11", "2026-Q3", "2026", ""} {
		var h held
		if err := json.Unmarshal([]byte(`{"p":"`+s+`"}`), &h); err != nil {
			t.Fatal(err)
		}
		if h.P.IsZero() != (s == "") {
			t.Errorf("%q is none: %t", s, h.P.IsZero())
		}
		back, err := json.Marshal(h)
		if err != nil || string(back) != `{"p":"`+s+`"}` {
			t.Errorf("%q becomes %s, %v", s, back, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"p":"2026-1"}`), &held{}); err == nil {
		t.Error("a misspelled period was read")
	}
}

func anyPeriod() *rapid.Generator[domain.Period] {
	return rapid.Custom(func(t *rapid.T) domain.Period {
		cadence := rapid.SampledFrom([]domain.Cadence{domain.Monthly, domain.Quarterly, domain.Yearly}).Draw(t, "cadence")
		return domain.PeriodOf(cadence, rapid.IntRange(2024, 2027).Draw(t, "year"), rapid.IntRange(1, 12).Draw(t, "month"))
	})
}

// months lists the months of a period, by walking its spelling.
func months(t *rapid.T, p domain.Period) (in []string) {
	year, rest, _ := strings.Cut(p.String(), "-")
	first, n := 1, 12
	switch {
	case strings.HasPrefix(rest, "Q"):
		first, n = 3*int(rest[1]-'0')-2, 3
	case rest != "":
		n = 1
		if _, err := fmt.Sscanf(rest, "%02d", &first); err != nil {
			t.Fatal(err)
		}
	}
	for m := first; m < first+n; m++ {
		in = append(in, fmt.Sprintf("%s-%02d", year, m))
	}
	return in
}

func TestPeriodsOverlapWhenTheyShareAMonth(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, q := anyPeriod().Draw(t, "p"), anyPeriod().Draw(t, "q")
		shared := slices.ContainsFunc(months(t, p), func(m string) bool { return slices.Contains(months(t, q), m) })
		if p.Overlaps(q) != shared || q.Overlaps(p) != shared {
			t.Fatalf("%s and %s: overlap %t and %t, share a month %t", p, q, p.Overlaps(q), q.Overlaps(p), shared)
		}
		// The order is total: of two different periods exactly one is before.
		if p == q == (p.Before(q) || q.Before(p)) || p.Before(q) && q.Before(p) {
			t.Fatalf("%s before %s: %t, the other way round: %t", p, q, p.Before(q), q.Before(p))
		}
		if next := p.Next(); p.Overlaps(next) || !p.Before(next) || len(months(t, next)) != len(months(t, p)) {
			t.Fatalf("after %s comes %s", p, next)
		}
	})
}

func TestPeriodOfCadence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cadence domain.Cadence
		month   int
		want    string
		next    string
	}{
		{domain.Monthly, 1, "2026-01", "2026-02"},
		{domain.Monthly, 12, "2026-12", "2027-01"},
		{domain.Quarterly, 1, "2026-Q1", "2026-Q2"},
		{domain.Quarterly, 3, "2026-Q1", "2026-Q2"},
		{domain.Quarterly, 4, "2026-Q2", "2026-Q3"},
		{domain.Quarterly, 12, "2026-Q4", "2027-Q1"},
		{domain.Yearly, 1, "2026", "2027"},
		{domain.Yearly, 12, "2026", "2027"},
	} {
		p := domain.PeriodOf(c.cadence, 2026, c.month)
		if p.String() != c.want || p.Next().String() != c.next {
			t.Errorf("%s, month %d: %s then %s, want %s then %s", c.cadence, c.month, p, p.Next(), c.want, c.next)
		}
		for _, other := range []domain.Cadence{domain.Monthly, domain.Quarterly, domain.Yearly, "", "weekly"} {
			if p.Fits(other) != (other == c.cadence) {
				t.Errorf("%s fits %q: %t", p, other, p.Fits(other))
			}
		}
	}
	if p := domain.PeriodOf("weekly", 2026, 1); !p.IsZero() {
		t.Errorf("an unknown cadence has the period %s", p)
	}
	for _, s := range []string{"", "Monthly", "MONTHLY", "weekly", "month", " monthly"} {
		_, err := domain.ParseCadence(s)
		refused(t, err, "cadence")
	}
}

func TestPeriodSetIsAValue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var set domain.PeriodSet
		model := map[domain.Period]bool{}
		type version struct {
			set     domain.PeriodSet
			members []domain.Period
		}
		var earlier []version
		for _, p := range rapid.SliceOfN(anyPeriod(), 0, 30).Draw(t, "periods") {
			earlier = append(earlier, version{set, slices.Collect(set.All())})
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				set, model[p] = set.Without(p), false
			} else {
				set, model[p] = set.With(p), true
			}
		}
		n := 0
		for p, in := range model {
			if set.Has(p) != in {
				t.Fatalf("%s in the set: %t, want %t", p, set.Has(p), in)
			}
			if in {
				n++
			}
		}
		members := slices.Collect(set.All())
		if set.Len() != n || len(members) != n {
			t.Fatalf("%d members, %d listed, want %d", set.Len(), len(members), n)
		}
		if !slices.IsSortedFunc(members, func(p, q domain.Period) int { return map[bool]int{true: -1, false: 1}[p.Before(q)] }) {
			t.Fatalf("members are listed as %v", members)
		}
		for _, p := range members {
			for q := range model {
				got, overlaps := domain.PeriodSet{}.With(p).Overlapping(q)
				if want := p != q && p.Overlaps(q); overlaps != want || want && got != p {
					t.Fatalf("{%s} overlapping %s: %s, %t", p, q, got, overlaps)
				}
			}
		}
		for _, v := range earlier {
			if !slices.Equal(slices.Collect(v.set.All()), v.members) {
				t.Fatal("a set changed when another was made from it")
			}
		}
	})
}
