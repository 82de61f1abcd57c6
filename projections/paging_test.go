package projections_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// A thousand records that tie in everything but their keys: paged in any
// size, either way, each comes up once, in one total order.
func TestPagingShowsEachRecordOnce(t *testing.T) {
	t.Parallel()
	const records, years = 1000, 20
	log := projectiontest.New(t)
	for i := range records {
		id := domain.CustomerID(fmt.Sprintf("c%d", i))
		log.Given(id, registered(id), requested(id, november, 1+i%5), refundAsked(id, november, "r-1", 100))
	}
	// One customer's bills, whose periods begin on the same days.
	dues := []domain.Event{registered("one")}
	for year := 2030; year < 2030+years; year++ {
		for month := 1; month <= 12; month++ {
			dues = append(dues, due("one", domain.PeriodOf(domain.Monthly, year, month)))
		}
		dues = append(dues, due("one", domain.PeriodOf(domain.Quarterly, year, 1)), due("one", domain.PeriodOf(domain.Yearly, year, 1)))
	}
	log.Given("one", dues...)
	log.Project(projections.All()...)
	reads := log.Reads()

	lists := map[string]func(context.Context, projections.Page) (keys []string, next string, err error){
		"customers": func(ctx context.Context, p projections.Page) ([]string, string, error) {
			list, err := reads.Customers(ctx, p)
			return keys(list.Items, func(c projections.Customer) string { return string(c.CustomerID) }), list.NextCursor, err
		},
		"charges": func(ctx context.Context, p projections.Page) ([]string, string, error) {
			list, err := reads.Charges(ctx, projections.ChargesQuery{Period: "2026-11", Page: p})
			return keys(list.Items, func(c projections.Charge) string { return fmt.Sprint(c.CustomerID, c.Attempt) }), list.NextCursor, err
		},
		"refunds": func(ctx context.Context, p projections.Page) ([]string, string, error) {
			list, err := reads.Refunds(ctx, projections.RefundsQuery{Period: "2026-11", Page: p})
			return keys(list.Items, func(r projections.Refund) string { return fmt.Sprint(r.CustomerID, r.RefundID) }), list.NextCursor, err
		},
		"bills": func(ctx context.Context, p projections.Page) ([]string, string, error) {
			list, err := reads.Bills(ctx, "one", p)
			return keys(list.Items, func(b projections.Bill) string { return b.BillingPeriod.String() }), list.NextCursor, err
		},
		"runs": func(ctx context.Context, p projections.Page) ([]string, string, error) {
			list, err := reads.Runs(ctx, p)
			return keys(list.Items, func(r projections.Run) string { return r.BillingPeriod.String() }), list.NextCursor, err
		},
		"facts": func(ctx context.Context, p projections.Page) ([]string, string, error) {
			list, err := reads.Facts(ctx, projections.FactsQuery{After: p.Cursor, Type: "charge.requested.v1", Limit: p.Limit, Order: p.Order})
			if len(list.Items) < p.Limit {
				list.NextCursor = ""
			}
			return keys(list.Items, func(f projections.Fact) string { return f.Position.String() }), list.NextCursor, err
		},
	}
	expected := map[string]int{"customers": records + 1, "charges": records, "refunds": records, "facts": records, "bills": years * 14, "runs": years*14 + 1}
	for name, list := range lists {
		var ascending []string
		for _, order := range []projections.Order{projections.Ascending, projections.Descending} {
			for _, size := range []int{1, 7, 100} {
				var all []string
				for cursor := ""; ; {
					page, next, err := list(t.Context(), projections.Page{Cursor: cursor, Limit: size, Order: order})
					if err != nil {
						t.Fatalf("%s %s by %d: %v", name, order, size, err)
					}
					if len(page) > size {
						t.Fatalf("%s %s by %d: a page of %d", name, order, size, len(page))
					}
					if all = append(all, page...); len(all) > expected[name] {
						t.Fatalf("%s %s by %d: more than there are", name, order, size)
					}
					if cursor = next; cursor == "" {
						break
					}
				}
				if order == projections.Descending {
					slices.Reverse(all)
				}
				if ascending == nil {
					ascending = all
				}
				once := map[string]bool{}
				for _, k := range all {
					once[k] = true
				}
				if len(once) != len(all) || len(all) != expected[name] || !slices.Equal(all, ascending) {
					t.Errorf("%s %s by %d: %d records, %d different, the same as before: %t", name, order, size, len(all), len(once), slices.Equal(all, ascending))
				}
			}
		}
	}
}

func keys[T any](items []T, key func(T) string) []string {
	keys := make([]string, len(items))
	for i, item := range items {
		keys[i] = key(item)
	}
	return keys
}

// Whatever comes in as a cursor, a filter, an order or a limit is either what
// it should be or refused by name; none of it reaches SQL as text.
func TestWhatIsNotAParameterIsRefused(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	for i := range 3 {
		id := domain.CustomerID(fmt.Sprintf("c%d", i))
		log.Given(id, registered(id), due(id, november), due(id, december), requested(id, november, 1))
	}
	log.Project(projections.All()...)
	reads, ctx := log.Reads(), t.Context()
	cursor := must(reads.Customers(ctx, projections.Page{Limit: 1}))(t).NextCursor
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || cursor == "" {
		t.Fatalf("cursor %q: %v", cursor, err)
	}
	forged := func(key string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(text), `"c0"`, key, 1)))
	}
	for _, bad := range []string{
		"x", "'", cursor + "A", cursor[:len(cursor)-1], strings.Repeat("A", 10_000), base64.RawURLEncoding.EncodeToString([]byte(`{"v":1}`)),
		forged(`"' OR 1=1 --"`), forged(`"c0' AND pg_sleep(5) IS NULL --"`), forged(`"c\u0000"`), forged(`""`), forged(`"c0","c1"`), forged(`7`), forged(`null`),
	} {
		_, err := reads.Customers(ctx, projections.Page{Cursor: bad})
		refused(t, err, domain.ErrInvalidInput, "cursor")
	}
	for name, err := range map[string]error{
		"another order": second(reads.Customers(ctx, projections.Page{Cursor: cursor, Order: projections.Descending})),
		"another list":  second(reads.Runs(ctx, projections.Page{Cursor: cursor})),
		"other filters": second(reads.Charges(ctx, projections.ChargesQuery{Status: "open", Page: projections.Page{
			Cursor: must(reads.Charges(ctx, projections.ChargesQuery{Page: projections.Page{Limit: 1}}))(t).NextCursor,
		}})),
	} {
		t.Run(name, func(t *testing.T) { refused(t, err, domain.ErrInvalidInput, "cursor") })
	}
	for _, probe := range []string{"' OR '1'='1", "asc; SELECT pg_sleep(5)", "\x00", "customer_id", "ASC", "unknown' --", "💸"} {
		refused(t, second(reads.Customers(ctx, projections.Page{Order: projections.Order(probe)})), domain.ErrInvalidInput, "order")
		refused(t, second(reads.Charges(ctx, projections.ChargesQuery{Status: probe})), domain.ErrInvalidInput, "status")
		refused(t, second(reads.Charges(ctx, projections.ChargesQuery{Period: probe})), domain.ErrInvalidInput, "period")
		refused(t, second(reads.Facts(ctx, projections.FactsQuery{Type: probe})), domain.ErrInvalidInput, "type")
		refused(t, second(reads.Facts(ctx, projections.FactsQuery{After: probe})), domain.ErrInvalidInput, "after")
		refused(t, second(reads.Revenue(ctx, probe, "", "")), domain.ErrInvalidInput, "from")
		refused(t, second(reads.Run(ctx, probe)), domain.ErrInvalidInput, "period")
		if probe == "customer_id" || probe == "ASC" {
			continue // those could be ids of customers, or streams
		}
		refused(t, second(reads.Charges(ctx, projections.ChargesQuery{Customer: probe})), domain.ErrInvalidInput, "customer")
		refused(t, second(reads.Customer(ctx, probe)), domain.ErrInvalidInput, "customer_id")
		refused(t, second(reads.Bills(ctx, probe, projections.Page{})), domain.ErrInvalidInput, "customer_id")
		if strings.ContainsAny(probe, " \x00💸") {
			refused(t, second(reads.Facts(ctx, projections.FactsQuery{Stream: probe})), domain.ErrInvalidInput, "stream")
		}
	}
	for _, limit := range []int{-1, 501, 1 << 40} {
		refused(t, second(reads.Customers(ctx, projections.Page{Limit: limit})), domain.ErrInvalidInput, "limit")
		refused(t, second(reads.Facts(ctx, projections.FactsQuery{Limit: limit})), domain.ErrInvalidInput, "limit")
	}
	// A well-formed forgery begins the list somewhere else, and that is all.
	if list := must(reads.Customers(ctx, projections.Page{Cursor: forged(`"c1"`)}))(t); len(list.Items) != 1 || list.Items[0].CustomerID != "c2" {
		t.Errorf("behind c1: %+v", list.Items)
	}
}

func second[V any](_ V, err error) error { return err }

// A reader that follows the log by its cursor sees each fact once, also those
// that commit late: a smaller position in another partition.
func TestFollowingTheLogMissesNothing(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	early, late := domain.CustomerID("early"), domain.CustomerID("late")
	if eventstore.PartitionOfStream(early.Stream()) == eventstore.PartitionOfStream(late.Stream()) {
		t.Fatal("the customers share a partition")
	}
	ctx := t.Context()
	// The late one draws its position first and commits last.
	tx, err := log.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	first, err := log.Store.AppendTx(ctx, tx, eventstore.Batch{Stream: late.Stream(), Command: "test", Events: []domain.Event{registered(late)}})
	if err != nil || first[0].Err != nil {
		t.Fatal(err, first)
	}
	log.Given(early, registered(early), activated(early))
	page := must(log.Reads().Facts(ctx, projections.FactsQuery{}))(t)
	if len(page.Items) != 2 || page.Items[0].Position.Position <= first[0].Recorded[0].Position {
		t.Fatalf("page %+v, the late fact at %s", page.Items, first[0].Recorded[0].Place)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	page = must(log.Reads().Facts(ctx, projections.FactsQuery{After: page.NextCursor}))(t)
	if len(page.Items) != 1 || page.Items[0].Position != first[0].Recorded[0].Place {
		t.Errorf("the page behind: %+v", page.Items)
	}
	if page = must(log.Reads().Facts(ctx, projections.FactsQuery{After: page.NextCursor}))(t); len(page.Items) != 0 {
		t.Errorf("and behind that: %+v", page.Items)
	}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	recorded := log.Given("acme", registered("acme"), activated("acme"), due("acme", november))
	log.Given("zeta", registered("zeta"))
	ctx, reads := t.Context(), log.Reads()
	show := func(q projections.FactsQuery) string {
		t.Helper()
		text := ""
		for _, f := range must(reads.Facts(ctx, q))(t).Items {
			text += string(f.Stream) + " " + f.Type + "; "
		}
		return text
	}
	want(t, "all", show(projections.FactsQuery{}),
		"customer/acme customer.registered.v1; customer/acme subscription.activated.v1; customer/acme billing.due.v1; customer/zeta customer.registered.v1; ")
	want(t, "after a place", show(projections.FactsQuery{After: recorded[1].Place.String()}), "customer/acme billing.due.v1; customer/zeta customer.registered.v1; ")
	want(t, "of a stream", show(projections.FactsQuery{Stream: "customer/zeta"}), "customer/zeta customer.registered.v1; ")
	want(t, "of a type", show(projections.FactsQuery{Type: "customer.registered.v1", Order: projections.Descending}),
		"customer/zeta customer.registered.v1; customer/acme customer.registered.v1; ")
	want(t, "before a place", show(projections.FactsQuery{After: recorded[1].Place.String(), Order: projections.Descending}), "customer/acme customer.registered.v1; ")

	fact := must(reads.Facts(ctx, projections.FactsQuery{Stream: "customer/acme", Limit: 1}))(t).Items[0]
	want(t, "position", fact.Position, recorded[0].Place)
	want(t, "payload", string(fact.Payload), string(recorded[0].Payload))
	want(t, "recorded at", fact.RecordedAt, recorded[0].RecordedAt.UTC())
}
