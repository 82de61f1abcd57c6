package policy

import (
	"fmt"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
)

const markers = `"metadata":{"customer_id":"cust_123","billing_period":"2026-11","billing_key":"78add715f5445db3d7f8c24b1df859b6"}`

func intent(status, more string) string {
	return fmt.Sprintf(`{"id":"pi_1","object":"payment_intent","status":%q,"amount":2900,"currency":"usd","customer":"cus_1","created":1700000000,%s%s}`, status, markers, more)
}

func chargeObject(status, more string) string {
	return fmt.Sprintf(`{"id":"ch_1","object":"charge","status":%q,"amount":2900,"currency":"usd","customer":{"id":"cus_1"},"created":1700000000,%s%s}`, status, markers, more)
}

var (
	getIntent = Call{Method: http.MethodGet, Rule: IntentsRead, Object: "pi_1"}
	confirm   = Call{Method: http.MethodPost, Rule: IntentsConfirm, Object: "pi_1"}
	charge    = Call{Method: http.MethodPost, Rule: ChargesCreate}
)

func TestWhatAnIntentShows(t *testing.T) {
	usd := domain.Money{Minor: 2900, Currency: "usd"}
	for name, x := range map[string]struct {
		body     string
		state    ObjectState
		received int64
		latest   string
	}{
		"open":                   {intent("requires_payment_method", `,"latest_charge":null,"amount_received":0`), Unpaid, 0, ""},
		"declined":               {intent("requires_payment_method", `,"latest_charge":"ch_9"`), Unpaid, 0, "ch_9"},
		"declined, expanded":     {intent("requires_payment_method", `,"latest_charge":{"id":"ch_9","status":"failed"}`), Unpaid, 0, "ch_9"},
		"a charge still pending": {intent("requires_payment_method", `,"latest_charge":{"id":"ch_9","status":"pending"}`), Processing, 0, "ch_9"},
		"to be confirmed":        {intent("requires_confirmation", ``), Unpaid, 0, ""},
		"processing":             {intent("processing", ``), Processing, 0, ""},
		"the customer must act":  {intent("requires_action", ``), Action, 0, ""},
		"authorised":             {intent("requires_capture", ``), Action, 0, ""},
		"cancelled":              {intent("canceled", ``), Cancelled, 0, ""},
		"what Stripe invents":    {intent("requires_luck", ``), Processing, 0, ""},
		"succeeded":              {intent("succeeded", `,"amount_received":2900,"latest_charge":"ch_1"`), Succeeded, 2900, "ch_1"},
		"succeeded with less":    {intent("succeeded", `,"amount_received":100,"latest_charge":"ch_1"`), Succeeded, 100, "ch_1"},
	} {
		want := []Evidence{{
			Object: "pi_1", State: x.state, Amount: usd, Received: x.received, StripeCustomer: "cus_1", Bill: bill(t, "cust_123", "2026-11"),
			LatestCharge: x.latest, Created: time.Unix(1700000000, 0).UTC(), Raw: []byte(x.body),
		}}
		if got := ReadEvidence(getIntent, 200, []byte(x.body)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestWhatAChargeShows(t *testing.T) {
	for name, x := range map[string]struct {
		body     string
		state    ObjectState
		received int64
	}{
		"succeeded":  {chargeObject("succeeded", `,"paid":true,"captured":true,"amount_captured":2900`), Succeeded, 2900},
		"in part":    {chargeObject("succeeded", `,"paid":true,"captured":true,"amount_captured":1900`), Succeeded, 1900},
		"authorised": {chargeObject("succeeded", `,"paid":true,"captured":false`), Action, 0},
		"pending":    {chargeObject("pending", `,"paid":false`), Processing, 0},
		"failed":     {chargeObject("failed", `,"paid":false`), Unpaid, 0},
	} {
		got := ReadEvidence(charge, 200, []byte(x.body))
		if len(got) != 1 || got[0].State != x.state || got[0].Received != x.received || got[0].StripeCustomer != "cus_1" || got[0].Object != "ch_1" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	got := ReadEvidence(charge, 200, []byte(chargeObject("succeeded", `,"paid":true,"captured":true,"refunded":true,"payment_intent":"pi_1"`)))
	if len(got) != 1 || !got[0].Refunded || got[0].Intent != "pi_1" || got[0].Received != 2900 {
		t.Errorf("refunded: %+v", got)
	}
}

func TestWhatListsErrorsAndEventsShow(t *testing.T) {
	paid := intent("succeeded", `,"amount_received":2900`)
	list := func(objects string) string { return `{"object":"list","data":[` + objects + `],"has_more":false}` }
	event := func(object string) string {
		return `{"id":"evt_1","object":"event","type":"t","created":1700000000,"request":{"id":"req_1","idempotency_key":"k-1"},"data":{"object":` + object + `}}`
	}
	lists := Call{Method: http.MethodGet, Rule: IntentsRead, List: true}
	events := Call{Method: http.MethodGet, Rule: EventsRead, List: true}
	refused := func(code, object string) string {
		return `{"error":{"type":"invalid_request_error","code":"` + code + `","message":"m","payment_intent":` + object + `}}`
	}
	for name, x := range map[string]struct {
		c      Call
		status int
		body   string
		want   []ObjectState
	}{
		"a page":                       {lists, 200, list(paid + "," + intent("canceled", "") + "," + chargeObject("failed", "")), []ObjectState{Succeeded, Cancelled, Unpaid}},
		"an empty page":                {lists, 200, list(""), nil},
		"a page of something else":     {lists, 200, list(`{"id":"cus_1","object":"customer"}`), nil},
		"what is not a page":           {lists, 200, paid, nil},
		"half a page":                  {lists, 200, list(paid)[:80], nil},
		"html":                         {getIntent, 200, "<html>", nil},
		"another intent than asked":    {Call{Method: http.MethodGet, Object: "pi_2"}, 200, paid, nil},
		"a customer":                   {Call{Method: http.MethodGet, Object: "cus_1"}, 200, `{"id":"cus_1","object":"customer"}`, nil},
		"an id that is none":           {charge, 200, `{"id":"../x","object":"charge","status":"succeeded","paid":true,"captured":true}`, nil},
		"intent in a 400":              {confirm, 400, refused("payment_intent_unexpected_state", paid), []ObjectState{Succeeded}},
		"intent in a 402":              {confirm, 402, refused("card_declined", intent("requires_payment_method", "")), []ObjectState{Unpaid}},
		"another intent in a 400":      {Call{Method: http.MethodPost, Object: "pi_2"}, 400, refused("payment_intent_unexpected_state", paid), nil},
		"intent in a 500":              {confirm, 500, refused("x", paid), nil},
		"another request's key":        {confirm, 400, `{"error":{"type":"idempotency_error","payment_intent":` + paid + `}}`, nil},
		"no such intent":               {getIntent, 404, `{"error":{"type":"invalid_request_error","code":"resource_missing"}}`, []ObjectState{Absent}},
		"no such address":              {getIntent, 404, `{"error":{"type":"invalid_request_error"}}`, nil},
		"a proxy's 404":                {getIntent, 404, `not found`, nil},
		"no such intent to confirm":    {confirm, 404, `{"error":{"type":"invalid_request_error","code":"resource_missing"}}`, nil},
		"an event of success":          {events, 200, list(event(paid)), []ObjectState{Succeeded}},
		"an event of cancellation":     {events, 200, list(event(intent("canceled", ""))), []ObjectState{Cancelled}},
		"an event of a former decline": {events, 200, list(event(intent("requires_payment_method", ""))), nil},
		"an event of a dispute":        {events, 200, list(event(`{"id":"dp_1","object":"dispute"}`)), nil},
	} {
		var got []ObjectState
		for _, e := range ReadEvidence(x.c, x.status, []byte(x.body)) {
			got = append(got, e.State)
		}
		if !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
	if got := ReadEvidence(Call{Method: http.MethodGet, Rule: EventsRead, Object: "evt_1"}, 200, []byte(event(paid))); len(got) != 1 || got[0].Key != "k-1" || got[0].Raw != nil {
		t.Errorf("one event: %+v", got)
	}
	refund := `{"id":"re_1","object":"refund","status":"succeeded","amount":500,"currency":"usd","charge":"ch_1","payment_intent":"pi_1","created":1}`
	if got := ReadEvidence(Call{Method: http.MethodPost, Rule: RefundsCreate}, 200, []byte(refund)); len(got) != 1 || got[0].Received != 500 || got[0].LatestCharge != "ch_1" || got[0].Intent != "pi_1" {
		t.Errorf("a refund: %+v", got)
	}
}

// The rows of the table, and what they say of earlier sends of the same key.
func TestWhatAnAnswerProves(t *testing.T) {
	e := func(kind, code, more string) string {
		return `{"error":{"type":"` + kind + `","code":"` + code + `","message":"m"` + more + `}}`
	}
	const nothing, itself, every = "nothing", "this request", "every send of the key"
	for name, x := range map[string]struct {
		status   int
		body     string
		replayed bool
		want     string
	}{
		"success":                       {200, intent("succeeded", ""), false, nothing},
		"processing":                    {200, intent("processing", ""), false, nothing},
		"empty success":                 {200, "{}", false, nothing},
		"a redirect":                    {307, "", false, nothing},
		"decline":                       {402, e("card_error", "card_declined", ""), false, every},
		"decline replayed":              {402, e("card_error", "card_declined", ""), true, every},
		"decline of an intent":          {402, e("card_error", "card_declined", `,"payment_intent":`+intent("requires_payment_method", "")), false, every},
		"authentication required":       {402, e("card_error", "authentication_required", `,"payment_intent":`+intent("requires_action", "")), false, nothing},
		"402 and succeeded":             {402, e("card_error", "card_declined", `,"payment_intent":`+intent("succeeded", "")), false, nothing},
		"402 of somebody else":          {402, "payment required", false, nothing},
		"402 with a string":             {402, `{"error":"no"}`, false, nothing},
		"bad parameter":                 {400, e("invalid_request_error", "parameter_invalid_integer", ""), false, itself},
		"bad parameter replayed":        {400, e("invalid_request_error", "parameter_invalid_integer", ""), true, every},
		"intent succeeded before":       {400, e("invalid_request_error", "payment_intent_unexpected_state", `,"payment_intent":`+intent("succeeded", "")), false, itself},
		"other parameters":              {400, e("idempotency_error", "", ""), false, nothing},
		"key in use":                    {409, e("invalid_request_error", "idempotency_key_in_use", ""), false, nothing},
		"key in use as 400":             {400, e("invalid_request_error", "idempotency_key_in_use", ""), false, nothing},
		"another conflict":              {409, e("invalid_request_error", "", ""), false, nothing},
		"400 of an internal error":      {400, e("api_error", "", ""), false, nothing},
		"key not accepted":              {401, e("invalid_request_error", "", ""), false, itself},
		"not permitted":                 {403, e("invalid_request_error", "", ""), false, itself},
		"no such object":                {404, e("invalid_request_error", "resource_missing", ""), false, itself},
		"no such object, stored":        {404, e("invalid_request_error", "resource_missing", ""), true, nothing},
		"not permitted, stored":         {403, e("invalid_request_error", "", ""), true, nothing},
		"a gateway's 404":               {404, "<html>not found</html>", false, nothing},
		"rate limit":                    {429, e("invalid_request_error", "rate_limit", ""), false, itself},
		"rate limit, as it was":         {429, e("rate_limit_error", "", ""), false, itself},
		"lock":                          {429, e("invalid_request_error", "lock_timeout", ""), false, itself},
		"429 for no reason":             {429, e("invalid_request_error", "", ""), false, nothing},
		"500":                           {500, e("api_error", "", ""), false, nothing},
		"500 replayed":                  {500, e("api_error", "", ""), true, nothing},
		"503 in words of a refusal":     {503, e("invalid_request_error", "rate_limit", ""), false, nothing},
		"418":                           {418, e("invalid_request_error", "", ""), false, nothing},
		"half an error":                 {402, e("card_error", "card_declined", "")[:20], false, nothing},
		"an error without a type":       {402, `{"error":{"code":"card_declined"}}`, false, nothing},
		"nothing at all":                {400, "", false, nothing},
		"null":                          {400, `{"error":null}`, false, nothing},
		"an intent that cannot be read": {402, e("card_error", "card_declined", `,"payment_intent":{"status":5}`), false, nothing},
	} {
		got := nothing
		if Proves(confirm, x.status, []byte(x.body), x.replayed) {
			got = itself
		}
		if Settles(confirm, x.status, []byte(x.body), x.replayed) {
			if got == nothing {
				t.Errorf("%s settles what it does not prove", name)
			}
			got = every
		}
		if got != x.want {
			t.Errorf("%s proves %s, want %s", name, got, x.want)
		}
	}
	if Proves(getIntent, 404, []byte(e("invalid_request_error", "resource_missing", "")), false) {
		t.Error("a read proves that nothing was executed")
	}
}
