package api

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/projections"
)

// page is any list.
type page struct {
	Items      []map[string]any `json:"items"`
	NextCursor string           `json:"next_cursor"`
	AsOf       struct {
		Position string `json:"position"`
		Vector   string `json:"vector"`
	} `json:"as_of"`
}

// fill makes customers with a bill each and returns the newest receipt of each.
func (i *instance) fill(n int) (newest []Receipt) {
	i.t.Helper()
	for c := range n {
		i.register(fmt.Sprintf("c%02d", c))
		newest = append(newest, i.send("charge-billing", chargeBody(fmt.Sprintf("c%02d", c), "2026-11", 5000)).receipt(i.t))
	}
	return newest
}

func TestReadYourOwnWrite(t *testing.T) {
	t.Parallel()
	i := start(t)
	registered := i.register("alice")
	charged := i.send("charge-billing", chargeBody("alice", "2026-11", 5000)).receipt(t)

	// Nobody projects yet: a read says so, and never shows the old as the new.
	a := i.get("/v1/customers/alice?wait=50ms&after_position=" + registered.Position.String())
	if p := a.problem(t); a.status != http.StatusGatewayTimeout || p.Code != "not_caught_up" || a.header.Get("Retry-After") == "" {
		t.Errorf("with nobody projecting got %d %s", a.status, a.body)
	}
	if p := i.get("/v1/customers/alice").problem(t); p.Status != 404 || p.Code != "unknown_customer" {
		t.Errorf("without waiting got %+v", p)
	}
	// The story is folded from the log.
	if a := i.get("/v1/customers/alice/periods/2026-11?after_position=" + charged.Position.String()); a.status != 200 || !strings.Contains(a.body, `"charge.requested.v1"`) {
		t.Errorf("the story got %d %s", a.status, a.body)
	}

	i.project()
	at := charged.Position.String()
	for _, path := range []string{"/v1/customers", "/v1/customers/alice", "/v1/customers/alice/periods", "/v1/charges", "/v1/runs", "/v1/runs/2026-11", "/v1/revenue", "/v1/events"} {
		a := i.get(path + "?wait=20s&after_position=" + at)
		if a.status != 200 {
			t.Errorf("%s got %d %s", path, a.status, a.body)
			continue
		}
		var p page
		a.json(t, &p)
		place, err := eventstore.ParsePlace(p.AsOf.Position)
		if err != nil || place.Position < charged.Position.Position || p.AsOf.Vector == "" {
			t.Errorf("%s is as of %+v, want %s or later", path, p.AsOf, at)
		}
	}
	var customer struct {
		ID string `json:"customer_id"`
	}
	i.get("/v1/customers/alice").json(t, &customer)
	if customer.ID != "alice" {
		t.Errorf("the customer is %+v", customer)
	}

	// A place that is not there yet is not there in time.
	next := eventstore.Place{Partition: charged.Position.Partition, Position: charged.Position.Position + 1000}
	a = i.get("/v1/charges?wait=50ms&after_position=" + next.String())
	if p := a.problem(t); p.Status != 504 || p.AsOf == nil || *p.AsOf != charged.Position {
		t.Errorf("a place to come got %s", a.body)
	}
}

// C104: what is not on the list of parameters, or not a value of one, is 400
// and names it.
func TestBadQueries(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.fill(2)
	lists := []string{"/v1/customers", "/v1/customers/c00/periods", "/v1/charges", "/v1/refunds", "/v1/runs", "/v1/schedule"}
	type bad struct{ path, query, field string }
	var cases []bad
	for _, path := range append(lists, "/v1/events", "/v1/revenue", "/v1/processors", "/v1/dead-letters", "/v1/customers/c00", "/v1/runs/2026-11", "/v1/customers/c00/periods/2026-11") {
		cases = append(cases, bad{path, "sort=name", "sort"}, bad{path, "sort=(SELECT+1)", "sort"}, bad{path, "%27=1", "'"}, bad{path, "a;b=1", "query"}, bad{path, "limit%zz=1", "query"})
	}
	for _, path := range append(lists, "/v1/events", "/v1/dead-letters") {
		for _, limit := range []string{"-1", "0", "501", "1000000000000000000000", "ten", "1.5", "1e3", "", "1;drop", "0x10"} {
			cases = append(cases, bad{path, "limit=" + url.QueryEscape(limit), "limit"})
		}
		cases = append(cases, bad{path, "limit=5&limit=6", "limit"})
	}
	for _, path := range append(lists, "/v1/events", "/v1/revenue") {
		for _, order := range []string{"up", "ASC", "asc,desc", "", "asc; DROP TABLE events", "asc--", "(CASE WHEN 1=1 THEN 1 END)"} {
			cases = append(cases, bad{path, "order=" + url.QueryEscape(order), "order"})
		}
	}
	for _, path := range append(lists, "/v1/dead-letters") {
		for _, cursor := range []string{"x", "' OR 1=1 --", "bnVsbA", "eyJ2IjoxfQ", "AAAA", strings.Repeat("A", 5000), ""} {
			cases = append(cases, bad{path, "cursor=" + url.QueryEscape(cursor), "cursor"})
		}
	}
	for _, path := range append(lists, "/v1/events", "/v1/revenue") {
		for _, place := range []string{"17", "17-", "-1", "64-1", "1-0", "01-1", "1-1-1", "1-9223372036854775808", "' OR 1=1", ""} {
			cases = append(cases, bad{path, "after_position=" + url.QueryEscape(place), "after_position"})
		}
		for _, wait := range []string{"5", "-1s", "61s", "", "soon"} {
			cases = append(cases, bad{path, "after_position=1-1&wait=" + wait, "wait"})
		}
		cases = append(cases, bad{path, "wait=1s", "wait"})
	}
	for _, status := range []string{"lost", "paid' OR 1=1", "PAID", ""} {
		cases = append(cases, bad{"/v1/charges", "status=" + url.QueryEscape(status), "status"})
	}
	cases = append(cases,
		bad{"/v1/charges", "period=2026-13", "period"}, bad{"/v1/charges", "customer=a:b", "customer"},
		bad{"/v1/refunds", "status=lost", "status"}, bad{"/v1/refunds", "period=x", "period"}, bad{"/v1/refunds", "customer=a:b", "customer"}, bad{"/v1/refunds", "charge=a'b", "charge"},
		bad{"/v1/revenue", "from=2026-Q1", "from"}, bad{"/v1/revenue", "to=x", "to"},
		bad{"/v1/events", "type=x", "type"}, bad{"/v1/events", "stream=%00", "stream"}, bad{"/v1/events", "after=x", "after"},
		bad{"/v1/runs/2026-13", "", "period"}, bad{"/v1/customers/a:b", "", "customer_id"}, bad{"/v1/customers/a:b/periods/x", "", "billing_period"},
		bad{"/v1/dead-letters", "resolved=maybe", "resolved"},
	)
	for _, c := range cases {
		a := i.get(c.path + "?" + c.query)
		if a.status != 400 {
			t.Errorf("%s?%s got %d %s", c.path, c.query, a.status, a.body)
			continue
		}
		if p := a.problem(t); !p.names(c.field) {
			t.Errorf("%s?%s names %v, want %s", c.path, c.query, p.Errors, c.field)
		}
	}
}

// A cursor that was tampered with begins elsewhere in the same list, or is
// refused; it never shows what is not in it.
func TestTamperedCursors(t *testing.T) {
	t.Parallel()
	i := start(t)
	newest := i.fill(3)
	i.project()
	i.get("/v1/customers?wait=20s&after_position=" + newest[2].Position.String())
	var first page
	i.get("/v1/customers?limit=1").json(t, &first)
	for k := range first.NextCursor {
		for _, c := range "A_z" {
			cursor := first.NextCursor[:k] + string(c) + first.NextCursor[k+1:]
			if a := i.get("/v1/customers?cursor=" + cursor); a.status != 200 && a.status != 400 {
				t.Fatalf("%s got %d %s", cursor, a.status, a.body)
			}
		}
	}
	for _, path := range []string{"/v1/charges", "/v1/runs", "/v1/customers/c00/periods"} {
		if p := i.get(path + "?cursor=" + first.NextCursor).problem(t); p.Status != 400 || !p.names("cursor") {
			t.Errorf("%s took a cursor of another list: %+v", path, p)
		}
	}
}

// C132: every item once, whatever the size of the page and the direction.
func TestPaging(t *testing.T) {
	t.Parallel()
	i := start(t)
	newest := i.fill(8)
	i.send("charge-billing", chargeBody("c00", "2026-12", 5000)).receipt(t)
	last := i.send("charge-billing", chargeBody("c00", "2027-01", 5000)).receipt(t)
	i.project()
	for _, r := range append(newest, last) {
		for _, path := range []string{"/v1/customers", "/v1/charges", "/v1/runs", "/v1/customers/c00/periods"} {
			if a := i.get(path + "?wait=20s&after_position=" + r.Position.String()); a.status != 200 {
				t.Fatalf("%s at %s got %d %s", path, r.Position, a.status, a.body)
			}
		}
	}
	for path, want := range map[string]int{"/v1/customers": 8, "/v1/charges": 10, "/v1/runs": 3, "/v1/customers/c00/periods": 3, "/v1/charges?period=2026-11": 8, "/v1/events": 18} {
		whole := map[string][]string{}
		for _, order := range []string{"asc", "desc"} {
			for _, size := range []int{1, 7, 100} {
				got := i.walk(path, order, size)
				seen := map[string]bool{}
				for _, item := range got {
					seen[item] = true
				}
				if len(got) != want || len(seen) != want {
					t.Errorf("%s %s by %d has %d items, %d different, want %d", path, order, size, len(got), len(seen), want)
				}
				if known, ok := whole[order]; ok && fmt.Sprint(known) != fmt.Sprint(got) {
					t.Errorf("%s %s by %d comes in another order", path, order, size)
				}
				whole[order] = got
			}
		}
		for k := range whole["asc"] {
			if whole["asc"][k] != whole["desc"][len(whole["desc"])-1-k] {
				t.Fatalf("%s backwards is not the reverse", path)
			}
		}
	}
}

// walk pages through a list.
func (i *instance) walk(path, order string, size int) (items []string) {
	i.t.Helper()
	base, parameter := path+"?", "cursor"
	if strings.Contains(path, "?") {
		base = path + "&"
	}
	if path == "/v1/events" {
		parameter = "after"
	}
	cursor := ""
	for range 100 {
		query := fmt.Sprintf("order=%s&limit=%d", order, size)
		if cursor != "" {
			query += "&" + parameter + "=" + cursor
		}
		a := i.get(base + query)
		if a.status != 200 {
			i.t.Fatalf("%s%s got %d %s", base, query, a.status, a.body)
		}
		var p page
		a.json(i.t, &p)
		for _, item := range p.Items {
			items = append(items, fmt.Sprint(item["customer_id"], " ", item["billing_period"], " ", item["attempt"], " ", item["event_id"]))
		}
		if cursor = p.NextCursor; cursor == "" || len(p.Items) == 0 {
			return items
		}
	}
	i.t.Fatalf("%s has no end", path)
	return nil
}

// Two processors can have a letter at the same position: a page may end
// between them.
func TestPagingDeadLetters(t *testing.T) {
	t.Parallel()
	i := start(t)
	for position := range 5 {
		for _, processor := range []string{"billing", "bills", "customers"} {
			if _, err := i.pool.Exec(t.Context(), `INSERT INTO dead_letters (processor, position, partition, sequence_key, event_id, event_type, attempts, error, status)
				VALUES ($1, $2, $3, $4, gen_random_uuid(), 'x', 5, 'broken', 'parked')`, processor, position+1, position, fmt.Sprint("c", position)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, size := range []int{1, 2, 7, 100} {
		seen := map[string]bool{}
		cursor, n := "", 0
		for {
			var p page
			a := i.get(fmt.Sprintf("/v1/dead-letters?limit=%d", size) + cursor)
			a.json(t, &p)
			for _, item := range p.Items {
				seen[fmt.Sprint(item["place"], item["processor"])] = true
				n++
			}
			if p.NextCursor == "" {
				break
			}
			cursor = "&cursor=" + p.NextCursor
		}
		if n != 15 || len(seen) != 15 {
			t.Errorf("by %d there are %d letters, %d different, want 15", size, n, len(seen))
		}
	}
	var p page
	i.get("/v1/dead-letters?processor=billing&customer=c3").json(t, &p)
	if len(p.Items) != 1 {
		t.Errorf("one letter was asked for, %d came", len(p.Items))
	}
}

func TestProcessorsAreListed(t *testing.T) {
	t.Parallel()
	i := start(t)
	charged := i.fill(1)[0]
	i.project()
	if a := i.get("/v1/charges?wait=20s&after_position=" + charged.Position.String()); a.status != 200 {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	var p page
	eventually(t, "all have caught up", func() bool {
		i.get("/v1/processors").json(t, &p)
		caught := 0
		for _, item := range p.Items {
			if item["caught_up"] == true {
				caught++
			}
		}
		all := len(projections.All())
		return len(p.Items) == all && caught == all
	})
}
