package policy

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/billonce/billonce/domain"
)

const form = "application/x-www-form-urlencoded"

func create(t *testing.T, body string) (Call, Verdict) {
	t.Helper()
	c, v := ParseTarget(http.MethodPost, "/v1/payment_intents")
	if !v.Allow {
		t.Fatal(v)
	}
	v = ReadForm(&c, form, []byte(body))
	return c, v
}

func TestWhatACreateSays(t *testing.T) {
	c, v := create(t, "amount=2900&currency=usd&customer=cus_1&payment_method_types%5B0%5D=card&metadata[customer_id]=cust_123&metadata%5Bbilling_period%5D=2026-11")
	if !v.Allow || c.Amount != 2900 || c.Currency != "usd" || c.StripeCustomer != "cus_1" || c.Bill != bill(t, "cust_123", "2026-11") || c.Confirms || c.Moves() {
		t.Fatalf("%+v %+v", c, v)
	}
	if c, _ = create(t, "amount=2900&currency=usd&confirm=True&off_session=False&description=True"); !c.Confirms || string(c.Encoded()) != "amount=2900&currency=usd&confirm=true&off_session=false&description=True" {
		t.Errorf("a create as older libraries spell it goes on as %s", c.Encoded())
	}
	if c, _ = create(t, "amount=2900&currency=usd&confirm=true"); !c.Confirms || !c.Moves() {
		t.Errorf("a create that confirms moves money: %+v", c)
	}
	if c, _ = create(t, "amount=2900&currency=usd&metadata[customer_id]=cust 123&metadata[billing_period]=2026-11"); !c.Bill.IsZero() {
		t.Errorf("read the bill %v out of markers that name none", c.Bill)
	}
}

// One reading or none: what another parser might see otherwise is refused.
func TestStrictForms(t *testing.T) {
	for _, body := range []string{
		"", "amount=2900", "currency=usd", "amount=2900&currency=usd&amount=1", "amount=2900&amount=2900&currency=usd", "amount=2900&currency=usd&%61mount=1",
		"amount[]=2900&currency=usd", "amount[0]=2900&currency=usd", "amount[x]=1&amount=2900&currency=usd", "amount=2900&currency=usd&amount[]=1",
		"amount=2900&currency=usd&currency[]=eur", "amount=2900&currency=usd&confirm[]=true", "amount=2900&currency=usd&customer[id]=cus_1",
		"amount=+2900&currency=usd", "amount=%2B2900&currency=usd", "amount=-1&currency=usd", "amount=0&currency=usd", "amount=02900&currency=usd",
		"amount=29.00&currency=usd", "amount=2900.0&currency=usd", "amount=2e3&currency=usd", "amount=0x10&currency=usd", "amount=2_900&currency=usd",
		"amount=2900 &currency=usd", "amount=%202900&currency=usd", "amount=99999999999999999999&currency=usd", "amount=&currency=usd", "amount=٢٩&currency=usd",
		"amount=2900&currency=USD", "amount=2900&currency=zzz", "amount=2900&currency=usd%00", "amount=2900&currency=", "amount=2900&currency=usd&confirm=1",
		"amount=2900&currency=usd&confirm=TRUE", "amount=2900&currency=usd&confirm=", "Amount=1&amount=2900&currency=usd", "amount=2900&currency=usd& amount=1",
		"amount=2900&currency=usd&amount%00=1", "amount=2900&currency=usd&amount]=1", "amount=2900&currency=usd&[amount]=1", "amount=2900&currency=usd&=1",
		"amount=2900&currency=usd&x", "amount=2900&&currency=usd", "amount=2900;currency=usd", "amount=2900&currency=usd&a=%zz", "amount=2900&currency=usd&a=%ff",
		"amount=2900&currency=usd&metadata=", "amount=2900&currency=usd&metadata[customer_id][x]=1", "amount=2900&currency=usd&metadata[]=1",
		"amount=2900&currency=usd&metadata[customer_id]=a&metadata[customer_id]=b", "amount=2900&currency=usd&metadata[ customer_id]=a",
		"amount=2900&currency=usd&metadata[customer_id]x=a", "{\"amount\":2900}", "amount=2900&currency=usd" + strings.Repeat("&expand[]=a", maxPairs),
	} {
		if c, v := create(t, body); v.Allow || v.Status != http.StatusBadRequest || v.Code != CodeRequest {
			t.Errorf("%.80s passes as %d %s: %+v", body, c.Amount, c.Currency, v)
		}
	}
}

func TestContentTypes(t *testing.T) {
	const body = "amount=2900&currency=usd"
	for contentType, want := range map[string]int{
		form: 0, form + "; charset=utf-8": 0, "application/x-www-form-urlencoded;charset=UTF-8": 0, "Application/X-WWW-Form-Urlencoded": 0,
		"": 415, "application/json": 415, "multipart/form-data; boundary=x": 415, "text/plain": 415, form + "; charset=utf-16": 415,
		form + "; boundary=x": 415, form + ", application/json": 415, "application/x-www-form-urlencoded; charset=utf-8; x=y": 415,
	} {
		c := Call{Method: http.MethodPost, Path: "/v1/payment_intents", Rule: IntentsCreate}
		if v := ReadForm(&c, contentType, []byte(body)); v.Status != want {
			t.Errorf("%q: %+v, want %d", contentType, v, want)
		}
	}
	c := Call{Method: http.MethodPost, Path: "/v1/payment_intents/pi_1/confirm", Rule: IntentsConfirm, Object: "pi_1"}
	if v := ReadForm(&c, "", nil); !v.Allow {
		t.Errorf("a confirm without a body: %+v", v)
	}
}

func TestFormsOfOtherCalls(t *testing.T) {
	for line, allow := range map[string]bool{
		"/v1/payment_intents/pi_1/confirm payment_method=pm_1&off_session=true": true,
		"/v1/payment_intents/pi_1/confirm amount=1":                             false,
		"/v1/payment_intents/pi_1/cancel currency=usd":                          false,
		"/v1/refunds charge=ch_1&amount=5":                                      true,
		"/v1/refunds payment_intent=pi_1":                                       true,
		"/v1/refunds charge=ch_1&payment_intent=pi_1":                           false,
		"/v1/refunds amount=5":                                                  false,
		"/v1/refunds charge=pi_1":                                               false,
		"/v1/refunds charge=../v1/payouts":                                      false,
		"/v1/refunds payment_intent=pi_1/confirm":                               false,
	} {
		target, body, _ := strings.Cut(line, " ")
		c, v := ParseTarget(http.MethodPost, target)
		if !v.Allow {
			t.Fatal(v)
		}
		if v = ReadForm(&c, form, []byte(body)); v.Allow != allow {
			t.Errorf("%s: %+v", line, v)
		}
	}
}

func TestIdempotencyKeys(t *testing.T) {
	for _, headers := range [][]string{nil, {""}, {" "}, {"a", "a"}, {"a", "b"}, {strings.Repeat("k", 256)}, {"a\tb"}, {"ключ"}} {
		if v := ReadKey(new(Call), headers); v.Allow || v.Code != CodeNoKey || v.Status != http.StatusBadRequest {
			t.Errorf("%q: %+v", headers, v)
		}
	}
	for _, key := range []string{"k", strings.Repeat("k", 255), "a b", "2f1c3a8e-1b1a-4f0e-9d53-0d7a3f6a6b10"} {
		var c Call
		if v := ReadKey(&c, []string{key}); !v.Allow || c.Key != key {
			t.Errorf("%q: %+v", key, v)
		}
	}
}

func TestFingerprintKnowsParametersNotTheirOrder(t *testing.T) {
	a, _ := create(t, "amount=2900&currency=usd&expand[]=a&expand[]=b")
	b, _ := create(t, "currency=usd&expand%5B%5D=a&amount=2900&expand[]=b")
	if a.Fingerprint != b.Fingerprint {
		t.Error("another order is another request")
	}
	for _, other := range []string{"amount=2901&currency=usd&expand[]=a&expand[]=b", "amount=2900&currency=usd&expand[]=b&expand[]=a", "amount=2900&currency=usd&expand[]=a"} {
		if c, _ := create(t, other); c.Fingerprint == a.Fingerprint {
			t.Errorf("%s is the same request", other)
		}
	}
}

func FuzzReadForm(f *testing.F) {
	for _, s := range []string{
		"amount=2900&currency=usd", "amount=2900&currency=usd&amount[]=1", "amount=2900&currency=usd&metadata[customer_id]=a&metadata[billing_period]=2026-11",
		"amount=%32%39&currency=usd&confirm=true", "amount=1&currency=usd&expand[]=latest_charge&expand[0]=x", "a=1;amount=2&amount=3&currency=jpy",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		c := Call{Method: http.MethodPost, Path: "/v1/payment_intents", Rule: IntentsCreate}
		if v := ReadForm(&c, form, []byte(body)); !v.Allow {
			return
		}
		values, err := url.ParseQuery(string(c.Encoded()))
		if err != nil {
			t.Fatalf("%q goes on as something that cannot be read: %v", body, err)
		}
		if !slices.Equal(values["amount"], []string{strconv.FormatInt(c.Amount, 10)}) || !slices.Equal(values["currency"], []string{string(c.Currency)}) {
			t.Fatalf("%q is judged as %d %s and goes on as %v", body, c.Amount, c.Currency, values)
		}
		if (values.Get("confirm") == "true") != c.Confirms {
			t.Fatalf("%q: confirms %v", body, c.Confirms)
		}
		for name := range values {
			if base, _, nested := strings.Cut(name, "["); nested && slices.Contains(scalars, base) {
				t.Fatalf("%q lets %s pass", body, name)
			}
		}
		again := Call{Method: c.Method, Path: c.Path, Rule: c.Rule}
		if v := ReadForm(&again, form, c.Encoded()); !v.Allow || again.Fingerprint != c.Fingerprint {
			t.Fatalf("%q is another request once it has gone on: %+v", body, v)
		}
	})
}

func bill(t *testing.T, customer, period string) BillID {
	t.Helper()
	id, err := domain.ParseCustomerID(customer)
	if err != nil {
		t.Fatal(err)
	}
	p, err := domain.ParsePeriod(period)
	if err != nil {
		t.Fatal(err)
	}
	return BillID{id, p}
}
