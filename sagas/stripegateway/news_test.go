package stripegateway

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Events in the shapes of our API version and of a newer one, and what is read
// of them.
func TestNewsGolden(t *testing.T) {
	t.Parallel()
	payloads, err := filepath.Glob("testdata/news/*.json")
	if err != nil || len(payloads) < 10 {
		t.Fatalf("%d payloads, %v", len(payloads), err)
	}
	versions := map[string]bool{}
	for _, path := range payloads {
		t.Run(filepath.Base(path), func(t *testing.T) {
			payload, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			n, err := ParseNews(payload)
			if err != nil {
				t.Fatal(err)
			}
			noSecret(t, "news", n)
			versions[n.APIVersion] = true
			got, err := json.MarshalIndent(n, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(path, ".json") + ".golden"
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got)+"\n" != string(want) {
				t.Errorf("got %s\nwant %s", got, want)
			}
		})
	}
	if !versions[APIVersion] || len(versions) < 2 {
		t.Errorf("the payloads are of the versions %v", versions)
	}
}

func anEvent(kind string, about object) object {
	return object{
		"id": "evt_1", "object": "event", "type": kind, "api_version": APIVersion, "created": 1700000100, "livemode": false,
		"request": object{"id": "req_1", "idempotency_key": "key-1"}, "data": object{"object": about},
	}
}

func TestNewsThatIsNone(t *testing.T) {
	t.Parallel()
	whole := anEvent("charge.succeeded", aCharge().with("object", "charge"))
	for name, c := range map[string]struct {
		payload string
		want    error
	}{
		"whole":                       {whole.String(), nil},
		"of a type nobody knows":      {whole.with("type", "charge_of_the_light_brigade", "data", object{"object": object{"object": "brigade"}}).String(), nil},
		"a charge of tomorrow":        {whole.with("data", object{"object": object{"object": "supercharge", "id": "sc_1"}}).String(), nil},
		"without a request":           {whole.with("request", nil).String(), nil},
		"with an old request":         {whole.with("request", "req_1").String(), nil},
		"empty":                       {"", ErrNotAnEvent},
		"no JSON":                     {"<html>" + secret, ErrNotAnEvent},
		"a list":                      {"[]", ErrNotAnEvent},
		"null":                        {"null", ErrNotAnEvent},
		"cut off":                     {whole.String()[:80], ErrNotAnEvent},
		"a charge":                    {aCharge().String(), ErrNotAnEvent},
		"a thin event":                {whole.with("object", "v2.core.event").String(), ErrNotAnEvent},
		"without an id":               {whole.without("id").String(), ErrNotAnEvent},
		"with a strange id":           {whole.with("id", "evt_1 "+secret).String(), ErrNotAnEvent},
		"without a type":              {whole.without("type").String(), ErrNotAnEvent},
		"without a time":              {whole.without("created").String(), ErrNotAnEvent},
		"of no time there is":         {whole.with("created", 1e18).String(), ErrNotAnEvent},
		"without an object":           {whole.without("data").String(), ErrEventObject},
		"with a charge without id":    {anEvent("charge.failed", object{"object": "charge"}).String(), ErrEventObject},
		"with a charge of text":       {anEvent("charge.failed", aCharge().with("object", "charge", "amount", "2900")).String(), ErrEventObject},
		"with a refund without id":    {anEvent("refund.failed", object{"object": "refund"}).String(), ErrEventObject},
		"with a dispute of no charge": {anEvent("charge.dispute.closed", object{"object": "dispute", "id": "dp_1", "status": "lost", "created": 1}).String(), ErrEventObject},
	} {
		n, err := ParseNews([]byte(c.payload))
		if !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "MARKER") {
			t.Errorf("%s: the error quotes the payload: %v", name, err)
		}
		if !errors.Is(c.want, ErrNotAnEvent) && n.EventID != "evt_1" {
			t.Errorf("%s: the event is not named: %+v", name, n)
		}
	}
}

func TestEventsPage(t *testing.T) {
	t.Parallel()
	good := anEvent("charge.succeeded", aCharge().with("object", "charge"))
	odd := anEvent("charge.succeeded", object{"object": "charge"}).with("id", "evt_2")
	g := newRig(t, time.Minute, answers(200, page(true, good, odd)))
	got, err := g.Events(t.Context(), sagas.EventListing{PageSize: 2})
	if err != nil || !got.More || len(got.News) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := got.News[0]; n.EventID != "evt_1" || n.IdempotencyKey != "key-1" || n.Charge == nil || n.Charge.ChargeID != "ch_1" || n.Charge.Amount != (domain.Money{Minor: 2900, Currency: "usd"}) {
		t.Errorf("%+v", n)
	}
	if n := got.News[1]; n.EventID != "evt_2" || n.Charge != nil {
		t.Errorf("%+v", n)
	}
	for name, answer := range map[string]struct {
		status int
		body   string
	}{
		"a page of charges": {200, page(false, aCharge())},
		"no page":           {200, `{}`},
		"502":               {502, html},
		"401":               {401, stripeError(badReq, "")},
	} {
		g := newRig(t, time.Minute, answers(answer.status, answer.body))
		if got, err := g.Events(t.Context(), sagas.EventListing{PageSize: 2}); err == nil || !reflect.DeepEqual(got, sagas.EventPage{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		} else {
			noSecret(t, "error", err.Error())
		}
	}
	for _, l := range []sagas.EventListing{{}, {PageSize: 101}, {PageSize: 1, After: "evt_1", Before: "evt_2"}} {
		if _, err := g.Events(t.Context(), l); !errors.Is(err, errEventListing) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

func TestAccount(t *testing.T) {
	t.Parallel()
	account := object{"id": "acct_1", "object": "account", "email": secret}
	g := newRig(t, time.Minute, answers(200, account.String()))
	if id, err := g.Account(t.Context()); err != nil || id != "acct_1" {
		t.Errorf("%s, %v", id, err)
	}
	for name, answer := range map[string]struct {
		status int
		body   string
	}{
		"a charge": {200, aCharge().String()}, "200 {}": {200, `{}`}, "HTML": {200, html},
		"401": {401, stripeError(badReq, "")}, "500": {500, stripeError(apiError, "")},
		"another object": {200, account.with("object", "customer").String()},
	} {
		g := newRig(t, time.Minute, answers(answer.status, answer.body))
		id, err := g.Account(t.Context())
		if id != "" || err == nil {
			t.Errorf("%s: %s, %v", name, id, err)
			continue
		}
		noSecret(t, "error", err.Error())
	}
}

// Whatever comes to the endpoint ends in news or in one of the two errors, and
// says nothing of what it held.
func FuzzParseNews(f *testing.F) {
	payloads, err := filepath.Glob("testdata/news/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range payloads {
		payload, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload)
		f.Add(payload[:len(payload)/2])
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		n, err := ParseNews(payload)
		switch {
		case err == nil && (n.EventID == "" || n.Type == "" || n.Created.IsZero()):
			t.Errorf("half an event: %+v", n)
		case err != nil && !errors.Is(err, ErrNotAnEvent) && !errors.Is(err, ErrEventObject):
			t.Errorf("another error: %v", err)
		case errors.Is(err, ErrNotAnEvent) && n.EventID != "":
			t.Errorf("no event, and yet %+v", n)
		}
		if err != nil && strings.Contains(err.Error(), "MARKER") {
			t.Errorf("the error quotes the payload: %v", err)
		}
	})
}
