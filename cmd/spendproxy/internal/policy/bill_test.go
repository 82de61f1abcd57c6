package policy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
)

// rig is a bill of the manifest, and the calls that it needs.
type rig struct {
	bill   BillID
	o      Obligation
	intent Evidence
}

func newRig(t *testing.T) rig {
	b := bill(t, "cust_123", "2026-11")
	usd := domain.Money{Minor: 2900, Currency: "usd"}
	return rig{
		bill:   b,
		o:      Obligation{Bill: b, Amount: usd, StripeCustomer: "cus_1"},
		intent: Evidence{Object: "pi_1", State: Unpaid, Amount: usd, StripeCustomer: "cus_1", Bill: b},
	}
}

func (r rig) create() Call {
	return Call{
		Method: http.MethodPost, Path: "/v1/payment_intents", Rule: IntentsCreate, Key: string(domain.CreateKey(r.bill.Customer, r.bill.Period, 1, 0)),
		Amount: 2900, Currency: "usd", StripeCustomer: "cus_1", Bill: r.bill,
	}
}

func (r rig) charge() Call {
	c := r.create()
	c.Path, c.Rule, c.Key = "/v1/charges", ChargesCreate, string(domain.ChargeKey(r.bill.Customer, r.bill.Period, 1))
	return c
}

func (r rig) confirm() Call {
	return Call{
		Method: http.MethodPost, Path: "/v1/payment_intents/pi_1/confirm", Rule: IntentsConfirm, Object: "pi_1",
		Key: string(domain.ConfirmKey(r.bill.Customer, r.bill.Period, 1, 1, 0)),
	}
}

func (r rig) cancel() Call {
	return Call{
		Method: http.MethodPost, Path: "/v1/payment_intents/pi_1/cancel", Rule: IntentsCancel, Object: "pi_1",
		Key: string(domain.CancelKey(r.bill.Customer, r.bill.Period, "pi_1")),
	}
}

func TestABillGetsWhatItNeeds(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]Call{"create": r.create(), "charge": r.charge()} {
		if v := Judge(c, &r.o, nil); !v.Allow {
			t.Errorf("%s: %+v", name, v)
		}
	}
	for name, c := range map[string]Call{"confirm": r.confirm(), "cancel": r.cancel()} {
		if v := Judge(c, &r.o, &r.intent); !v.Allow {
			t.Errorf("%s: %+v", name, v)
		}
	}
	if v := Judge(Call{Method: http.MethodGet, Rule: IntentsRead}, nil, nil); !v.Allow {
		t.Errorf("a read: %+v", v)
	}
	c := r.create()
	c.Form = []Pair{{"metadata[billing_key]", string(domain.ChargeKey(r.bill.Customer, r.bill.Period, 1))}}
	if v := Judge(c, &r.o, nil); !v.Allow {
		t.Errorf("with the marker billing_key: %+v", v)
	}
}

func TestABillGetsNothingElse(t *testing.T) {
	r := newRig(t)
	other := bill(t, "cust_124", "2026-11")
	random := "5f0c1f6e-0000-4000-8000-1c0d5e1b9b53"
	paid := r.o
	paid.Paid = "pi_0"
	foreign := r.intent
	foreign.Bill = other
	dearer := r.intent
	dearer.Amount.Minor++
	euros := r.intent
	euros.Amount.Currency = "eur"
	elsewhere := r.intent
	elsewhere.StripeCustomer = "cus_2"
	unnamed := r.intent
	unnamed.Bill = BillID{}

	for name, x := range map[string]struct {
		c     Call
		o     *Obligation
		known *Evidence
		want  Code
	}{
		"create: not in the manifest":  {r.create(), nil, nil, CodeObligation},
		"create: names no bill":        {with(r.create(), func(c *Call) { c.Bill = BillID{} }), &r.o, nil, CodeObligation},
		"create: another bill":         {with(r.create(), func(c *Call) { c.Bill = other }), &r.o, nil, CodeMismatch},
		"create: another amount":       {with(r.create(), func(c *Call) { c.Amount = 2901 }), &r.o, nil, CodeMismatch},
		"create: another currency":     {with(r.create(), func(c *Call) { c.Currency = "eur" }), &r.o, nil, CodeMismatch},
		"create: another customer":     {with(r.create(), func(c *Call) { c.StripeCustomer = "cus_2" }), &r.o, nil, CodeMismatch},
		"create: no customer":          {with(r.create(), func(c *Call) { c.StripeCustomer = "" }), &r.o, nil, CodeMismatch},
		"create: a random key":         {with(r.create(), func(c *Call) { c.Key = random }), &r.o, nil, CodeKey},
		"create: the confirm's key":    {with(r.create(), func(c *Call) { c.Key = r.confirm().Key }), &r.o, nil, CodeKey},
		"create: another bill's key":   {with(r.create(), func(c *Call) { c.Key = string(domain.CreateKey(other.Customer, other.Period, 1, 0)) }), &r.o, nil, CodeKey},
		"create: another marker":       {with(r.create(), func(c *Call) { c.Form = []Pair{{"metadata[billing_key]", "x"}} }), &r.o, nil, CodeMismatch},
		"create: confirms":             {with(r.create(), func(c *Call) { c.Confirms = true }), &r.o, nil, CodeParameter},
		"create: paid already":         {r.create(), &paid, nil, CodePaid},
		"charge: a random key":         {with(r.charge(), func(c *Call) { c.Key = random }), &r.o, nil, CodeKey},
		"charge: again":                {with(r.charge(), func(c *Call) { c.Key += "-again-1" }), &r.o, nil, CodeKey},
		"charge: paid already":         {r.charge(), &paid, nil, CodePaid},
		"charge: another amount":       {with(r.charge(), func(c *Call) { c.Amount = 1 }), &r.o, nil, CodeMismatch},
		"confirm: unknown intent":      {r.confirm(), &r.o, nil, CodeObligation},
		"confirm: intent of no bill":   {r.confirm(), &r.o, &unnamed, CodeObligation},
		"confirm: not in the manifest": {r.confirm(), nil, &r.intent, CodeObligation},
		"confirm: another's intent":    {r.confirm(), &r.o, &foreign, CodeMismatch},
		"confirm: dearer intent":       {r.confirm(), &r.o, &dearer, CodeMismatch},
		"confirm: other currency":      {r.confirm(), &r.o, &euros, CodeMismatch},
		"confirm: other customer":      {r.confirm(), &r.o, &elsewhere, CodeMismatch},
		"confirm: a random key":        {with(r.confirm(), func(c *Call) { c.Key = random }), &r.o, &r.intent, CodeKey},
		"confirm: the create's key":    {with(r.confirm(), func(c *Call) { c.Key = r.create().Key }), &r.o, &r.intent, CodeKey},
		"confirm: bill paid":           {r.confirm(), &paid, &r.intent, CodePaid},
		"cancel: a random key":         {with(r.cancel(), func(c *Call) { c.Key = random }), &r.o, &r.intent, CodeKey},
		"cancel: another's intent":     {r.cancel(), &r.o, &foreign, CodeMismatch},
		"refund":                       {Call{Method: http.MethodPost, Rule: RefundsCreate, Key: random}, &r.o, &r.intent, CodeObligation},
	} {
		if v := Judge(x.c, x.o, x.known); v.Allow || v.Code != x.want || v.Status != http.StatusForbidden || v.Reason == "" {
			t.Errorf("%s: %+v, want %s", name, v, x.want)
		}
	}
}

func with(c Call, change func(*Call)) Call {
	change(&c)
	return c
}

// Every key that the house derives for a bill passes for it, and for nothing
// else of it, nor for another bill.
func TestDerivedKeys(t *testing.T) {
	b, other := bill(t, "cust_123", "2026-11"), bill(t, "cust_123", "2026-12")
	for _, n := range []int{1, 2, 3, 17} {
		for _, again := range []int{0, 1, 2, 40} {
			create := string(domain.CreateKey(b.Customer, b.Period, n, again))
			if !isCreateKey(create, b) || isCreateKey(create, other) || isConfirmKey(create, b) || isChargeKey(create, b) {
				t.Errorf("create key %s", create)
			}
			for _, attempt := range []int{1, 2, 5, 300} {
				confirm := string(domain.ConfirmKey(b.Customer, b.Period, attempt, n, again))
				if !isConfirmKey(confirm, b) || isConfirmKey(confirm, other) || isCreateKey(confirm, b) || isChargeKey(confirm, b) != (again == 0) {
					t.Errorf("confirm key %s", confirm)
				}
			}
		}
	}
	stem := string(domain.ChargeKey(b.Customer, b.Period, 1))
	for _, suffix := range []string{
		"-", "-i", "-i1", "-i0", "-i02", "-i+2", "-i2-", "-again-", "-again-0", "-again-01", "-again-1-again-1", "-again-1-i2", "-i2-again", "x", " ",
		"-2", "-I2", "-i99999999999999999999", "-again-1 ", "-intent-1", "-intent-02", "-intent2", "-intent-", "-intent-again-0", "-intent-2-again-", "-intent-i2",
	} {
		if isConfirmKey(stem+suffix, b) || isCreateKey(stem+suffix, b) || isChargeKey(stem+suffix, b) {
			t.Errorf("%s passes", suffix)
		}
	}
	if isConfirmKey(strings.ToUpper(stem), b) || isConfirmKey("", b) || isConfirmKey(stem[:31], b) {
		t.Error("a key that only looks like the bill's passes")
	}
}

func TestRulesOfAKey(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	run := Grant{Rules: RunRules, Mode: Enforce, Manifest: true, Expires: now.Add(time.Hour)}
	free := Grant{Rules: []Rule{IntentsCreate, IntentsConfirm, RefundsCreate, CustomersRead, IntentsRead, ChargesCreate}}
	for name, x := range map[string]struct {
		g      Grant
		method string
		target string
		body   string
		want   Code
	}{
		"run: create":                   {run, "POST", "/v1/payment_intents", "amount=2900&currency=usd&customer=cus_1&payment_method_types[0]=card&metadata[a]=b", ""},
		"run: create and confirm":       {run, "POST", "/v1/payment_intents", "amount=2900&currency=usd&confirm=true", CodeParameter},
		"run: confirm":                  {run, "POST", "/v1/payment_intents/pi_1/confirm", "payment_method=pm_1&off_session=true&expand[]=latest_charge", ""},
		"run: cancel":                   {run, "POST", "/v1/payment_intents/pi_1/cancel", "cancellation_reason=duplicate", ""},
		"run: refund":                   {run, "POST", "/v1/refunds", "charge=ch_1", CodeRule},
		"run: legacy charge":            {run, "POST", "/v1/charges", "amount=2900&currency=usd&customer=cus_1&source=card_1", ""},
		"run: expanded read":            {run, "GET", "/v1/payment_intents/pi_1?expand[0]=latest_charge", "", ""},
		"run: expand of a customer":     {run, "GET", "/v1/payment_intents/pi_1?expand[]=latest_charge.customer", "", CodeRule},
		"run: expand of who knows what": {run, "GET", "/v1/payment_intents/pi_1?expand[]=invoice.subscription", "", CodeParameter},
		"run: list":                     {run, "GET", "/v1/charges?customer=cus_1&limit=100&starting_after=ch_1&created[gte]=1&expand[]=data.payment_intent", "", ""},
		"run: list by what is unknown":  {run, "GET", "/v1/charges?query=x", "", CodeParameter},
		"run: customers":                {run, "GET", "/v1/customers/cus_1", "", CodeRule},
		"free: create and confirm":      {free, "POST", "/v1/payment_intents", "amount=2900&currency=usd&confirm=true&payment_method=pm_1&off_session=true", ""},
		"free: expand of a customer":    {free, "POST", "/v1/payment_intents", "amount=2900&currency=usd&expand[]=customer", ""},
		"free: expand of a charge":      {free, "POST", "/v1/payment_intents", "amount=2900&currency=usd&expand[]=latest_charge", CodeRule},
		"free: refund":                  {free, "POST", "/v1/refunds", "charge=ch_1&amount=5&reason=duplicate", ""},
		"free: cancel":                  {free, "POST", "/v1/payment_intents/pi_1/cancel", "", CodeRule},
		"money elsewhere":               {free, "POST", "/v1/payment_intents", "amount=2900&currency=usd&transfer_data[destination]=acct_1", CodeParameter},
		"on behalf":                     {free, "POST", "/v1/payment_intents", "amount=2900&currency=usd&on_behalf_of=acct_1", CodeParameter},
		"a fee":                         {free, "POST", "/v1/payment_intents", "amount=2900&currency=usd&application_fee_amount=1", CodeParameter},
		"money later":                   {free, "POST", "/v1/payment_intents", "amount=2900&currency=usd&capture_method=manual", CodeParameter},
		"money later, by method":        {free, "POST", "/v1/payment_intents", "amount=2900&currency=usd&payment_method_options[card][capture_method]=manual", CodeParameter},
		"an authorisation":              {free, "POST", "/v1/charges", "amount=2900&currency=usd&capture=false", CodeParameter},
		"a destination":                 {free, "POST", "/v1/charges", "amount=2900&currency=usd&destination[account]=acct_1", CodeParameter},
		"raw card data":                 {free, "POST", "/v1/charges", "amount=2900&currency=usd&source[object]=card&source[number]=4242", CodeParameter},
		"raw card data of a confirm":    {free, "POST", "/v1/payment_intents/pi_1/confirm", "payment_method_data[type]=card", CodeParameter},
		"another amount at confirm":     {free, "POST", "/v1/payment_intents/pi_1/confirm", "amount_to_confirm=1", CodeParameter},
		"a refund of a fee":             {free, "POST", "/v1/refunds", "charge=ch_1&refund_application_fee=true", CodeParameter},
		"a list as a value":             {free, "POST", "/v1/payment_intents", "amount=2900&currency=usd&payment_method_types=card", CodeParameter},
	} {
		c, v := ParseTarget(x.method, x.target)
		if v.Allow && x.method == "POST" {
			v = ReadForm(&c, form, []byte(x.body))
		}
		if !v.Allow {
			t.Errorf("%s cannot be read: %+v", name, v)
			continue
		}
		if v = x.g.Judge(c, now); v.Code != x.want || v.Allow != (x.want == "") || !v.Allow && !v.Yields() {
			t.Errorf("%s: %+v, want %q", name, v, x.want)
		}
	}
	c, _ := ParseTarget("GET", "/v1/charges")
	if v := run.Judge(c, run.Expires); v.Status != http.StatusUnauthorized || v.Yields() {
		t.Errorf("an expired key: %+v", v)
	}
}
