package sim_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// idsOf goes through a list to its end.
func idsOf(t testing.TB, list interface {
	Next() bool
	Err() error
}, id func() string) (ids []string) {
	t.Helper()
	for list.Next() {
		ids = append(ids, id())
	}
	if err := list.Err(); err != nil {
		t.Fatalf("list: %v", err)
	}
	return ids
}

func intentIDs(t testing.TB, c *client.API, p *stripe.PaymentIntentListParams) []string {
	t.Helper()
	list := c.PaymentIntents.List(p)
	return idsOf(t, list, func() string { return list.PaymentIntent().ID })
}

// newestFirst makes n intents and returns their ids as a list shows them.
func newestFirst(t testing.TB, c *client.API, n int, change func(int, *stripe.PaymentIntentParams)) []string {
	t.Helper()
	var ids []string
	for i := range n {
		p := createParams(fmt.Sprintf("create-%d", i))
		if change != nil {
			change(i, p)
		}
		pi, err := c.PaymentIntents.New(p)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, pi.ID)
	}
	slices.Reverse(ids)
	return ids
}

// All pages together are everything, once, newest first, although most of it was
// created in one second.
func TestListPages(t *testing.T) {
	t.Parallel()
	_, c := start(t, sim.Options{})
	want := newestFirst(t, c, 25, nil)
	for _, limit := range []int64{1, 7, 10, 25, 100} {
		p := &stripe.PaymentIntentListParams{}
		p.Limit = stripe.Int64(limit)
		if got := intentIDs(t, c, p); !slices.Equal(got, want) {
			t.Errorf("limit %d: got %d ids, not the %d made, newest first", limit, len(got), len(want))
		}
	}
	p := &stripe.PaymentIntentListParams{}
	p.Limit, p.Single = stripe.Int64(10), true
	it := c.PaymentIntents.List(p)
	equal(t, "has_more on page 1", it.Meta().HasMore, true)
	p = &stripe.PaymentIntentListParams{}
	p.Limit, p.Single = stripe.Int64(25), true
	equal(t, "has_more when that was all", c.PaymentIntents.List(p).Meta().HasMore, false)
}

// The cursor of a sweep: only what is newer, the nearest first, to the end.
func TestListEndingBefore(t *testing.T) {
	t.Parallel()
	_, c := start(t, sim.Options{})
	ids := newestFirst(t, c, 25, nil)
	p := &stripe.PaymentIntentListParams{}
	p.Limit, p.EndingBefore = stripe.Int64(4), stripe.String(ids[10])
	got := intentIDs(t, c, p) // stripe-go yields these oldest first
	slices.Reverse(got)
	if !slices.Equal(got, ids[:10]) {
		t.Errorf("got %v, want the ten newer ones %v", got, ids[:10])
	}
	p = &stripe.PaymentIntentListParams{}
	p.EndingBefore = stripe.String(ids[0])
	equal(t, "newer than the newest", len(intentIDs(t, c, p)), 0)
	p = &stripe.PaymentIntentListParams{}
	p.StartingAfter = stripe.String(ids[20])
	if got := intentIDs(t, c, p); !slices.Equal(got, ids[21:]) {
		t.Errorf("older than a cursor: got %v, want %v", got, ids[21:])
	}
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{Clock: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)})
	began := s.Now()
	ids := newestFirst(t, c, 6, func(i int, p *stripe.PaymentIntentParams) {
		s.SetClock(began.Add(time.Duration(i) * time.Hour))
		if i%2 == 1 {
			p.Customer = stripe.String("cus_B")
		}
	})
	at := func(i int) int64 { return began.Add(time.Duration(i) * time.Hour).Unix() }
	for name, q := range map[string]struct {
		bounds *stripe.RangeQueryParams
		want   []string
	}{
		"gte":  {&stripe.RangeQueryParams{GreaterThanOrEqual: at(3)}, ids[:3]},
		"gt":   {&stripe.RangeQueryParams{GreaterThan: at(3)}, ids[:2]},
		"lt":   {&stripe.RangeQueryParams{LesserThan: at(2)}, ids[4:]},
		"lte":  {&stripe.RangeQueryParams{LesserThanOrEqual: at(2)}, ids[3:]},
		"both": {&stripe.RangeQueryParams{GreaterThanOrEqual: at(1), LesserThan: at(3)}, ids[3:5]},
	} {
		p := &stripe.PaymentIntentListParams{CreatedRange: q.bounds}
		p.Limit = stripe.Int64(1)
		if got := intentIDs(t, c, p); !slices.Equal(got, q.want) {
			t.Errorf("created %s: got %v, want %v", name, got, q.want)
		}
	}
	exactly := at(2)
	if got := intentIDs(t, c, &stripe.PaymentIntentListParams{Created: &exactly}); !slices.Equal(got, ids[3:4]) {
		t.Errorf("created: got %v", got)
	}
	p := &stripe.PaymentIntentListParams{Customer: stripe.String("cus_B")}
	p.Limit = stripe.Int64(2)
	if got := intentIDs(t, c, p); !slices.Equal(got, []string{ids[0], ids[2], ids[4]}) {
		t.Errorf("customer: got %v", got)
	}
}

func TestListCharges(t *testing.T) {
	t.Parallel()
	_, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	for n := range 3 {
		method := "pm_card_chargeCustomerFail"
		if n == 2 {
			method = "pm_card_visa"
		}
		c.PaymentIntents.Confirm(pi.ID, confirmParams(keyN(n), method)) //nolint:errcheck // two decline
	}
	p := chargeParams("legacy")
	p.TransferGroup = stripe.String("group-1")
	if _, err := c.Charges.New(p); err != nil {
		t.Fatal(err)
	}
	count := func(p *stripe.ChargeListParams) int {
		n := 0
		it := c.Charges.List(p)
		for it.Next() {
			n++
		}
		if err := it.Err(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	equal(t, "of the intent", count(&stripe.ChargeListParams{PaymentIntent: stripe.String(pi.ID)}), 3)
	equal(t, "of the group", count(&stripe.ChargeListParams{TransferGroup: stripe.String("group-1")}), 1)
	equal(t, "of the customer", count(&stripe.ChargeListParams{Customer: stripe.String("cus_A")}), 4)
	equal(t, "of nobody", count(&stripe.ChargeListParams{Customer: stripe.String("cus_B")}), 0)
}

func TestListRefusals(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{Settings: sim.Settings{RefuseUnknownCustomers: true}})
	for _, query := range []string{
		"limit=0", "limit=101", "limit=ten", "starting_after=pi_none", "ending_before=pi_none",
		"starting_after=pi_a&ending_before=pi_b", "created[gte]=yesterday", "created[after]=1", "sort=amount",
		"customer=cus_nobody", "expand[]=latest_charge", "expand=data.latest_charge",
	} {
		equal(t, query, get(t, s, "/v1/payment_intents?"+query).status, 400)
	}
	equal(t, "expanded", get(t, s, "/v1/payment_intents?expand[]=data.latest_charge&limit=100").status, 200)

	// A page that fails shows in Err alone.
	newestFirst(t, c, 3, func(_ int, p *stripe.PaymentIntentParams) { p.Customer = nil })
	arm(t, s, sim.Fault{Kind: sim.Error500NotStored, Match: sim.Match{Method: "GET", Path: "/v1/payment_intents", Nth: 2}})
	p := &stripe.PaymentIntentListParams{}
	p.Limit = stripe.Int64(2)
	it := c.PaymentIntents.List(p)
	n := 0
	for it.Next() {
		n++
	}
	equal(t, "items before the failing page", n, 2)
	stripeError(t, it.Err(), 500, "")
}

// Search is behind: what is new is not found, what has changed is found by its
// old fields and shown as it is.
func TestSearchLags(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	search := func(query string) []*stripe.PaymentIntent {
		t.Helper()
		var found []*stripe.PaymentIntent
		p := &stripe.PaymentIntentSearchParams{}
		p.Query = query
		it := c.PaymentIntents.Search(p)
		for it.Next() {
			found = append(found, it.PaymentIntent())
		}
		if err := it.Err(); err != nil {
			t.Fatal(err)
		}
		return found
	}
	pi := create(t, c, "create")
	const marker = "metadata['customer_id']:'a' AND metadata['billing_period']:'2026-11'" // case does not matter
	equal(t, "at once", len(search(marker)), 0)
	s.Advance(61 * time.Second)
	equal(t, "after the lag", len(search(marker)), 1)

	_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("declined", "pm_card_chargeCustomerFail"))
	stripeError(t, err, 402, "card_declined")
	if _, err := c.PaymentIntents.Update(pi.ID, &stripe.PaymentIntentParams{PaymentMethod: stripe.String("pm_card_visa")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa")); err != nil {
		t.Fatal(err)
	}
	found := search("status:'requires_payment_method'")
	if len(found) != 1 || found[0].Status != stripe.PaymentIntentStatusSucceeded {
		t.Errorf("stale match with fresh content: got %+v", found)
	}
	equal(t, "by the new status, at once", len(search("status:'succeeded'")), 0)
	s.Advance(61 * time.Second)
	equal(t, "by the new status, later", len(search("status:'succeeded'")), 1)
	equal(t, "by amount", len(search("amount>4999 AND amount<=5000 -currency:'eur'")), 1)
	equal(t, "either", len(search("currency:'eur' OR currency:'usd'")), 1)
	equal(t, "neither", len(search("currency:'eur' OR amount>5000")), 0)

	if err := s.Configure(func(set *sim.Settings) { set.SearchLag = 6 * time.Hour }); err != nil {
		t.Fatal(err)
	}
	equal(t, "in an outage", len(search(marker)), 0)

	charges := c.Charges.Search(&stripe.ChargeSearchParams{SearchParams: stripe.SearchParams{Query: "payment_intent:'" + pi.ID + "'"}})
	equal(t, "charge in an outage", charges.Next(), false)
	s.Advance(7 * time.Hour)
	charges = c.Charges.Search(&stripe.ChargeSearchParams{SearchParams: stripe.SearchParams{Query: "payment_intent:'" + pi.ID + "'"}})
	equal(t, "charge afterwards", charges.Next(), true)
}

func TestSearchPagesAndRefusals(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{Settings: sim.Settings{SearchLag: -1, SearchRate: -1}})
	newestFirst(t, c, 23, nil)
	p := &stripe.PaymentIntentSearchParams{}
	p.Query, p.Limit = "metadata['customer_id']:'A'", stripe.Int64(10)
	n := 0
	it := c.PaymentIntents.Search(p)
	for it.Next() {
		n++
	}
	equal(t, "over three pages", n, 23)
	for _, query := range []string{"", "nonsense", "status=succeeded", "status:'a' AND amount>1 OR amount<5", "(status:'a')", "name:'x'", "amount:'x'", "status:'open"} {
		equal(t, "query "+query, get(t, s, "/v1/payment_intents/search?query="+escape(query)).status, 400)
	}
	eleven := "amount>1"
	for range 10 {
		eleven += " AND amount>1"
	}
	equal(t, "eleven clauses", get(t, s, "/v1/payment_intents/search?query="+escape(eleven)).status, 400)

	if err := s.Configure(func(set *sim.Settings) { set.SearchRate = 1 }); err != nil {
		t.Fatal(err)
	}
	limited := 0
	for range 5 {
		if get(t, s, "/v1/payment_intents/search?query=amount%3E1").status == 429 {
			limited++
		}
	}
	if limited == 0 {
		t.Error("five searches at once with one a second allowed: none was limited")
	}
}
