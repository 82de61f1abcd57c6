package stripegateway

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// keptOf are the members kept of a page of T.
func keptOf[T any]() members { return membersOf(reflect.TypeFor[pageAnswer[T]]()) }

func TestSift(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", deepest+5) + strings.Repeat("]", deepest+5)
	for _, c := range []struct{ name, text, want string }{ // want empty: it is not sifted
		{"what nobody reads", `{"object":"list","url":"/v1/charges","has_more":false,"data":[]}`, `{"object":"list","has_more":false,"data":[]}`},
		{"blanks", " {\n\"object\" : \"list\" ,\t\"data\" : [ ] , \"url\" : [ 1 , { } ] }\r\n", `{"object":"list","data":[]}`},
		{"in elements", `{"data":[{"id":"ch_1","evidence":{"id":"no"},"paid":true},{"id":"ch_2"}]}`, `{"data":[{"id":"ch_1","paid":true},{"id":"ch_2"}]}`},
		{"in objects of elements", `{"data":[{"outcome":{"type":"x","reason":"y"},"customer":{"id":"cus_1","x":1}}]}`, `{"data":[{"outcome":{"reason":"y"},"customer":{"id":"cus_1","x":1}}]}`},
		{"metadata is kept", `{"data":[{"metadata":{"customer_id":"a","x":"y"}}]}`, `{"data":[{"metadata":{"customer_id":"a","x":"y"}}]}`},
		{"quotes and brackets in texts", `{"url":"\"}]\\","data":[{"id":"a\\\"","x":"{[\\"}]}`, `{"data":[{"id":"a\\\""}]}`},
		{"null", `null`, `null`},
		{"holes", `{"data":[null,7,"x",{"id":"ch_1"}]}`, `{"data":[null,7,"x",{"id":"ch_1"}]}`},
		{"a member twice", `{"data":1,"data":[]}`, `{"data":1,"data":[]}`},
		{"empty", ``, ``},
		{"HTML", `<html></html>`, ``},
		{"two values", `{} {}`, ``},
		{"cut off", `{"data":[{"id":"ch_1"`, ``},
		{"cut off in a text", `{"data":[{"x":"ch_1`, ``},
		{"cut off behind a backslash", `{"x":"\`, ``},
		{"no comma", `{"x":1 "data":[]}`, ``},
		{"a comma too many", `{"x":[1,],"data":[]}`, ``},
		{"the wrong bracket", `{"x":[1},"data":[]}`, ``},
		{"no name", `{1:2}`, ``},
		{"no value", `{"x":,"data":[]}`, ``},
		{"too deep", `{"x":` + deep + `}`, ``},
	} {
		got, ok := sift([]byte(c.text), keptOf[chargeMembers]())
		if ok != (c.want != "") || ok && string(got) != c.want {
			t.Errorf("%s: %t %s, want %s", c.name, ok, got, c.want)
		}
	}
}

// TestSiftedReadsAlike reads pages whole and sifted: what can be read is sifted,
// and what the package sees of it is the same.
func TestSiftedReadsAlike(t *testing.T) {
	t.Parallel()
	readsAlike[chargeMembers](t, func() object { return aCharge() })
	readsAlike[intent](t, func() object { return anIntent() })
	readsAlike[intent](t, func() object { return anIntent().with("latest_charge", aCharge()) })
	readsAlike[event](t, func() object {
		return object{"id": "evt_1", "object": "event", "type": "charge.succeeded", "created": 1700000000,
			"request": object{"id": "req_1", "idempotency_key": "k"}, "data": object{"object": aCharge(), "previous_attributes": object{"x": 1}}}
	})
	readsAlike[refund](t, func() object {
		return object{"id": "re_1", "object": "refund", "status": "succeeded", "amount": 1, "charge": "ch_1", "metadata": object{"refund_id": "r"}}
	})
}

func readsAlike[T any](t *testing.T, one func() object) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		objects := make([]object, rapid.IntRange(0, 3).Draw(t, "objects"))
		for i := range objects {
			objects[i] = one()
			if name := rapid.SampledFrom([]string{"", "unread", "status", "metadata", "customer"}).Draw(t, "member"); name != "" {
				objects[i][name] = rapid.SampledFrom([]any{nil, "text \" \\ ] }", 7, true, object{"id": "x", "list": []int{1}}, []string{"a"}}).Draw(t, "value")
			}
		}
		text := page(false, objects...)
		if rapid.Bool().Draw(t, "broken") {
			at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
			text = text[:at] + rapid.SampledFrom([]string{"", `"`, `}`, `]`, `,`, `\`, `{`}).Draw(t, "by") + text[at+1:]
		}
		var whole, less pageAnswer[T]
		wholeErr := json.Unmarshal([]byte(text), &whole)
		sifted, ok := sift([]byte(text), keptOf[T]())
		if !ok {
			if json.Valid([]byte(text)) {
				t.Fatalf("not sifted: %s", text)
			}
			return
		}
		if wholeErr == nil && (json.Unmarshal(sifted, &less) != nil || !reflect.DeepEqual(whole, less)) {
			t.Fatalf("whole  %+v\nsifted %+v", whole, less)
		}
	})
}
