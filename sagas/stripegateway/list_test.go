package stripegateway

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

func page(more bool, objects ...object) string {
	all := make([]string, len(objects))
	for i, o := range objects {
		all[i] = o.String()
	}
	return fmt.Sprintf(`{"object":"list","data":[%s],"has_more":%t,"url":"/v1/x"}`, strings.Join(all, ","), more)
}

func TestListShowsWhatStripeHolds(t *testing.T) {
	t.Parallel()
	charges := page(true,
		aCharge(),
		aCharge().with("id", "ch_2", "status", "failed", "paid", false, "captured", false),
		aCharge().with("id", "ch_3", "captured", false),
		aCharge().with("id", "ch_4", "refunded", true),
		aCharge().with("id", "ch_5", "payment_intent", nil, "customer", nil, "metadata", object{}),
	)
	g := newRig(t, time.Minute, answers(200, charges))
	got, err := g.List(t.Context(), sagas.Listing{Resource: "charges", PageSize: 5})
	if err != nil {
		t.Fatal(err)
	}
	found := sagas.Found{
		ID: "ch_1", IntentID: "pi_1", ChargeID: "ch_1", Status: "succeeded", Succeeded: true,
		Amount: domain.Money{Minor: 2900, Currency: "usd"}, StripeCustomerID: "cus_0001",
		CustomerID: "cust_123", Period: "2026-11", BillingKey: "78add715f5445db3d7f8c24b1df859b6",
		Created: time.Unix(1700000001, 0).UTC(),
	}
	failed, authorised, refunded, legacy := found, found, found, found
	failed.ID, failed.ChargeID, failed.Status, failed.Succeeded = "ch_2", "ch_2", "failed", false
	authorised.ID, authorised.ChargeID, authorised.Succeeded = "ch_3", "ch_3", false
	refunded.ID, refunded.ChargeID, refunded.Refunded = "ch_4", "ch_4", true
	legacy.ID, legacy.ChargeID, legacy.IntentID, legacy.StripeCustomerID = "ch_5", "ch_5", "", ""
	legacy.CustomerID, legacy.Period, legacy.BillingKey = "", "", ""
	if want := (sagas.Page{Found: []sagas.Found{found, failed, authorised, refunded, legacy}, More: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("charges\n got %+v\nwant %+v", got, want)
	}

	g = newRig(t, time.Minute, answers(200, page(false, anIntent(), anIntent().open().with("id", "pi_2"))))
	got, err = g.List(t.Context(), sagas.Listing{Resource: "payment_intents", PageSize: 5})
	if err != nil {
		t.Fatal(err)
	}
	paid := found
	paid.ID, paid.Created = "pi_1", time.Unix(1700000000, 0).UTC()
	open := paid
	open.ID, open.IntentID, open.ChargeID, open.Status, open.Succeeded = "pi_2", "pi_2", "", "requires_payment_method", false
	if want := (sagas.Page{Found: []sagas.Found{paid, open}}); !reflect.DeepEqual(got, want) {
		t.Errorf("intents\n got %+v\nwant %+v", got, want)
	}
}

func TestAnEmptyListIsEmptyOnlyIfStripeSaysSo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int
		body   string
		ok     bool
	}{
		{"an empty page", 200, page(false), true},
		{"200 {}", 200, `{}`, false},
		{"200 null", 200, `null`, false},
		{"200 []", 200, `[]`, false},
		{"200 HTML", 200, html, false},
		{"nothing", 200, ``, false},
		{"a page without data", 200, `{"object":"list","has_more":false}`, false},
		{"a page whose data is null", 200, `{"object":"list","data":null,"has_more":false}`, false},
		{"a page without has_more", 200, `{"object":"list","data":[]}`, false},
		{"a page that is empty and goes on", 200, page(true), false},
		{"half a page", 200, page(false, aCharge())[:200], false},
		{"another object", 200, aCharge().String(), false},
		{"a page with a hole", 200, `{"object":"list","data":[null],"has_more":false}`, false},
		{"a page with something else", 200, page(false, object{"object": "event"}), false},
		{"an error in a 200", 200, stripeError(apiError, ""), false},
		{"a redirect", 302, page(false), false},
		{"400", 400, stripeError(badReq, "resource_missing", "param", "starting_after"), false},
		{"401", 401, stripeError(badReq, ""), false},
		{"429", 429, stripeError(badReq, "rate_limit"), false},
		{"500", 500, stripeError(apiError, ""), false},
		{"502 HTML", 502, html, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, time.Minute, answers(c.status, c.body))
			for _, resource := range []string{"payment_intents", "charges"} {
				got, err := g.List(t.Context(), sagas.Listing{Resource: resource, PageSize: 10})
				if (err == nil) != c.ok || len(got.Found) != 0 || got.More {
					t.Errorf("%s: %+v, %v", resource, got, err)
				}
				if err != nil {
					noSecret(t, "error", err.Error())
				}
			}
		})
	}
}

func TestListRefusesWhatItCannotAsk(t *testing.T) {
	t.Parallel()
	g := rigAt(t, closedPort(t), time.Minute)
	for _, l := range []sagas.Listing{
		{Resource: "customers", PageSize: 1},
		{Resource: "", PageSize: 1},
		{Resource: "charges"},
		{Resource: "charges", PageSize: 101},
		{Resource: "charges", PageSize: -1},
		{Resource: "charges", PageSize: 1, After: "ch_1", Before: "ch_2"},
	} {
		if _, err := g.List(t.Context(), l); err == nil || !strings.Contains(err.Error(), errListing.Error()) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// A charge is read by its id: it is there, it is not, or nothing is known.
func TestChargeByItsID(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	o := s.prepared(t, "charge", "pm_card_visa")
	paid := s.Take(t.Context(), o)
	f, there, err := s.Charge(t.Context(), paid.ChargeID)
	if err != nil || !there || !f.Succeeded || f.ID != paid.ChargeID || f.Amount != o.Amount || f.CustomerID != string(o.CustomerID) || f.StripeCustomerID != o.StripeCustomerID {
		t.Errorf("read: %+v, %t, %v", f, there, err)
	}
	if f, there, err := s.Charge(t.Context(), "ch_nowhere"); err != nil || there {
		t.Errorf("one that is not there: %+v, %t, %v", f, there, err)
	}
	s.fault(t, sim.Fault{Kind: sim.Gateway502, Match: sim.Match{Method: http.MethodGet, Path: "/v1/charges/*"}})
	if _, _, err := s.Charge(t.Context(), paid.ChargeID); err == nil {
		t.Error("a read that failed says something")
	}
	for _, id := range []string{"", "pi_1", "ch_../x", "ch_"} {
		if _, _, err := s.Charge(t.Context(), id); err == nil {
			t.Errorf("%q is read", id)
		}
	}
}
