package policy

import (
	"net/http"
	"net/url"
	"path"
	"reflect"
	"strings"
	"testing"
)

func TestWhatIsOnTheList(t *testing.T) {
	for line, want := range map[string]Call{
		"POST /v1/payment_intents":                 {Rule: IntentsCreate},
		"POST /v1/payment_intents/pi_1/confirm":    {Rule: IntentsConfirm, Object: "pi_1"},
		"POST /v1/payment_intents/pi_1/cancel":     {Rule: IntentsCancel, Object: "pi_1"},
		"GET /v1/payment_intents/pi_1":             {Rule: IntentsRead, Object: "pi_1"},
		"GET /v1/payment_intents?limit=100":        {Rule: IntentsRead, List: true, Query: "limit=100", Form: []Pair{{"limit", "100"}}},
		"POST /v1/charges":                         {Rule: ChargesCreate},
		"GET /v1/charges/py_1":                     {Rule: ChargesRead, Object: "py_1"},
		"POST /v1/refunds":                         {Rule: RefundsCreate},
		"GET /v1/refunds":                          {Rule: RefundsRead, List: true},
		"GET /v1/customers/cus_1":                  {Rule: CustomersRead, Object: "cus_1"},
		"GET /v1/customers/cus_1/payment_methods":  {Rule: MethodsRead, Object: "cus_1", List: true},
		"GET /v1/payment_methods/pm_1":             {Rule: MethodsRead, Object: "pm_1"},
		"GET /v1/account":                          {Rule: AccountRead},
		"GET /v1/events?types[]=a&types%5B%5D=b%2": {},
		"GET /v1/events?types[]=a&types%5B%5D=b": {
			Rule: EventsRead, List: true, Query: "types%5B%5D=a&types%5B%5D=b", Form: []Pair{{"types[]", "a"}, {"types[]", "b"}}},
		"GET /v1/account?": {Rule: AccountRead},
	} {
		method, target, _ := strings.Cut(line, " ")
		got, v := ParseTarget(method, target)
		if want.Rule == "" {
			if v.Allow {
				t.Errorf("%s passes", line)
			}
			continue
		}
		want.Method = method
		want.Path, _, _ = strings.Cut(target, "?")
		if !v.Allow || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %+v, want %+v", line, got, v, want)
		}
	}
}

// Case C031: whatever a path could be read as by something behind us, only its
// one spelling passes.
func TestC031_SpellingsOfAPath(t *testing.T) {
	for _, target := range spellings {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if c, v := ParseTarget(method, target); v.Allow || v.Status != http.StatusForbidden || v.Code != CodeTarget {
				t.Errorf("%s %s: %+v %+v", method, target, c, v)
			}
		}
	}
	for _, method := range []string{"", "get", "Post", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"} {
		if _, v := ParseTarget(method, "/v1/charges"); v.Allow || v.Code != CodeTarget {
			t.Errorf("method %q passes: %+v", method, v)
		}
	}
	if _, v := ParseTarget(http.MethodPost, "/v1/charges?amount=1"); v.Allow || v.Status != http.StatusBadRequest {
		t.Errorf("a query on a POST: %+v", v)
	}
}

var spellings = []string{
	"", "*", "/", "//", "/v1", "/v1/", "v1/charges", "//v1/charges", "/v1//charges", "/v1/charges/", "/v1/charges//", "/v1/charges/.",
	"/v1/charges/..", "/v1/./charges", "/v1/x/../charges", "/../v1/charges", "/v1/charges/../refunds", "/v1/%2e%2e/v1/charges",
	"/v1/%2e/charges", "/v1/.%2e/charges", "/v1%2fcharges", "/v1%2Fcharges", "/v1/charges%2f", "/v1/charges%2fch_1", "/v1/payment_intents/pi_1%2fcapture",
	"/v1/payment_intents/pi_1%252fcapture", "/v1%5ccharges", `/v1\charges`, `\v1\charges`, "/v1/charges;x", "/v1/charges;x=1", "/v1;x/charges",
	"/v1/payment_intents/pi_1;x/confirm", "/V1/charges", "/v1/Charges", "/v1/CHARGES", "/v1/payment_intents/PI_1", "/v1/payment_intents/pi_1/Confirm",
	"/v1/charges.", "/v1/charges/.json", "/v1/charges.json", "/v1/charges%00", "/v1/charges\x00", "/v1/charges%20", "/v1/charges ", "/v1/charges%0a",
	"/v1/charges#x", "/v1/%63harges", "/%76%31/charges", "/v1/cha%72ges", "/v1/charges%3fx", "/v1/charges%23", "/v1/ch\u0430rges", "/v1/charge\u017f",
	"http://api.stripe.com/v1/charges", "https://evil.example/v1/charges", "HTTP://x/v1/charges", "//evil.example/v1/charges", "/v1@evil.example/charges",
	"evil.example:443", "/v2/charges", "/v1/v1/charges", "/v1/charges/ch_1/refund", "/v1/charges/ch_1/capture", "/files/v1/charges", "/admin/v1/charges",
}

// Case C032: ways to money that are not on the list, whatever the key permits.
func TestC032_RoutesNotOnTheList(t *testing.T) {
	for _, line := range notListed {
		method, target, _ := strings.Cut(line, " ")
		if c, v := ParseTarget(method, target); v.Allow || v.Status != http.StatusForbidden {
			t.Errorf("%s: %+v %+v", line, c, v)
		}
	}
}

var notListed = []string{
	"POST /v1/payment_intents/pi_1", "POST /v1/payment_intents/pi_1/capture", "POST /v1/payment_intents/pi_1/increment_authorization",
	"POST /v1/payment_intents/pi_1/apply_customer_balance", "POST /v1/payment_intents/pi_1/verify_microdeposits", "POST /v1/payment_intents/search",
	"GET /v1/payment_intents/search", "GET /v1/charges/search", "POST /v1/charges/ch_1", "POST /v1/charges/ch_1/capture", "POST /v1/charges/ch_1/refunds",
	"POST /v1/charges/ch_1/refund", "POST /v1/invoices", "POST /v1/invoices/in_1/pay", "POST /v1/invoices/in_1/finalize", "POST /v1/invoiceitems",
	"POST /v1/subscriptions", "POST /v1/subscriptions/sub_1", "POST /v1/subscription_schedules", "POST /v1/transfers", "POST /v1/payouts", "POST /v1/topups",
	"POST /v1/setup_intents", "POST /v1/setup_intents/seti_1/confirm", "POST /v1/checkout/sessions", "POST /v1/payment_links", "POST /v1/quotes/qt_1/accept",
	"POST /v1/orders", "POST /v1/sources", "POST /v1/tokens", "POST /v1/customers", "POST /v1/customers/cus_1", "POST /v1/customers/cus_1/sources",
	"POST /v1/payment_methods", "POST /v1/payment_methods/pm_1/attach", "POST /v1/payment_methods/pm_1/detach", "POST /v1/refunds/re_1", "POST /v1/refunds/re_1/cancel",
	"POST /v1/accounts", "POST /v1/account_links", "GET /v1/accounts/acct_1", "POST /v1/application_fees/fee_1/refunds", "POST /v1/terminal/readers/tmr_1/process_payment_intent",
	"POST /v1/issuing/cards", "POST /v1/treasury/outbound_payments", "POST /v1/apple_pay/domains", "POST /v1/ephemeral_keys", "POST /v1/webhook_endpoints",
	"GET /v1/balance", "GET /v1/balance_transactions", "GET /v1/disputes", "POST /v1/disputes/dp_1/close", "DELETE /v1/customers/cus_1", "POST /v1/events/evt_1",
	"POST /v1/batch", "POST /v2/billing/meter_events", "POST /v1/test_helpers/refunds/re_1/expire", "GET /v1/files", "POST /v1/payment_intents/pi_1/confirm/x",
}

func FuzzParseTarget(f *testing.F) {
	for _, s := range spellings {
		f.Add("POST", s)
	}
	for _, s := range notListed {
		method, target, _ := strings.Cut(s, " ")
		f.Add(method, target)
	}
	f.Add("GET", "/v1/payment_intents/pi_1?expand%5B0%5D=latest_charge")
	f.Add("GET", "/v1/charges?created[gte]=1&limit=100&customer=cus_1")
	f.Add("POST", "/v1/payment_intents/pi_1/confirm")
	f.Fuzz(func(t *testing.T, method, target string) {
		c, v := ParseTarget(method, target)
		if !v.Allow {
			if v.Status < 400 || v.Code == "" || v.Reason == "" {
				t.Fatalf("%q: a refusal without a reason: %+v", target, v)
			}
			return
		}
		raw, _, _ := strings.Cut(target, "?")
		if c.Path != raw || path.Clean(c.Path) != c.Path || !strings.HasPrefix(c.Path, "/v1/") || strings.ContainsAny(c.Path, "%;\\.?#@ ") {
			t.Fatalf("%q passes as %q", target, c.Path)
		}
		u, err := url.ParseRequestURI(c.Path + "?" + c.Query)
		if err != nil || u.EscapedPath() != c.Path || u.Host != "" {
			t.Fatalf("%q: %v", target, err)
		}
		again, v := ParseTarget(method, strings.TrimSuffix(c.Path+"?"+c.Query, "?"))
		if !v.Allow || !reflect.DeepEqual(again, c) {
			t.Fatalf("%q is read as %+v, then as %+v", target, c, again)
		}
	})
}
