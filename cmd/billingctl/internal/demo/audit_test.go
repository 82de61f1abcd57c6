package demo

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
	"github.com/billonce/billonce/domain"
)

var now = time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)

func customer(n int, minor int64, currency string) Customer {
	return Customer{CustomerID: fmt.Sprintf("cust_%d", n), StripeCustomerID: fmt.Sprintf("cus_%d", n), AmountMinor: minor, Currency: currency}
}

func charged(c Customer, id string) parts.Movement {
	return parts.Movement{Charge: id, Customer: c.StripeCustomerID, Amount: c.AmountMinor, Currency: c.Currency, Status: "succeeded", At: now,
		Metadata: map[string]string{"billing_period": "2026-12"}}
}

var (
	usd = customer(1, 1000, "usd")
	eur = customer(2, 2050, "eur")
	jpy = customer(3, 500, "jpy")
	kwd = customer(4, 1230, "kwd")
	all = []Customer{usd, eur, jpy, kwd}
)

func TestAuditOfAGoodMonth(t *testing.T) {
	t.Parallel()
	declined := charged(usd, "ch_0")
	declined.Status = "failed"
	a := newAudit(all, []parts.Movement{declined, charged(kwd, "ch_4"), charged(usd, "ch_1"), charged(jpy, "ch_3"), charged(eur, "ch_2")})
	if !a.right() || a.customers != 4 || a.charged != 4 || a.charges != 4 || len(a.twice) != 0 || len(a.missing) != 0 {
		t.Errorf("got %+v", a)
	}
	var out bytes.Buffer
	if err := a.table(booksOf(a), proxyBooksOf(a)).Write(&out, ""); err != nil {
		t.Fatal(err)
	}
	want := `
currency  customers       owed   Stripe's  service's    proxy's  charges  twice  missing
eur               1     €20.50     €20.50     €20.50     €20.50        1      0        0
jpy               1       ¥500       ¥500       ¥500       ¥500        1      0        0
kwd               1  KWD 1.230  KWD 1.230  KWD 1.230  KWD 1.230        1      0        0
usd               1     $10.00     $10.00     $10.00     $10.00        1      0        0
all               4          -          -          -          -        4      0        0
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}

// Whatever is wrong is found and named, however the sums come out.
func TestAuditFinds(t *testing.T) {
	t.Parallel()
	good := []parts.Movement{charged(usd, "ch_1"), charged(eur, "ch_2"), charged(jpy, "ch_3"), charged(kwd, "ch_4")}
	with := func(more ...parts.Movement) []parts.Movement { return append(slices.Clone(good), more...) }
	wrongAmount, wrongCurrency, unmarked := charged(usd, "ch_1"), charged(usd, "ch_1"), charged(usd, "ch_9")
	wrongAmount.Amount, wrongCurrency.Currency, unmarked.Metadata = 999, "eur", nil
	stranger := charged(customer(9, 100, "usd"), "ch_9")
	for _, test := range []struct {
		name                    string
		movements               []parts.Movement
		charged, twice, missing int
		finding                 string
	}{
		{"nothing", nil, 0, 0, 4, "cust_3 owes ¥500 and was not charged"},
		{"one missing", good[1:], 3, 0, 1, "cust_1 owes $10.00 and was not charged"},
		{"twice", with(charged(usd, "ch_9")), 4, 1, 0, "cust_1 owes $10.00 and was charged 2 times (ch_1, ch_9)"},
		{"twice, the second without metadata", with(unmarked), 4, 1, 0, "cust_1 owes $10.00 and was charged 2 times (ch_1, ch_9)"},
		{"one twice and one not at all, sums of another", append(slices.Clone(good[1:]), charged(eur, "ch_9")), 3, 1, 1, "cust_2 owes €20.50 and was charged 2 times (ch_2, ch_9)"},
		{"amount", append(slices.Clone(good[1:]), wrongAmount), 4, 0, 0, "cust_1 owes $10.00 and was charged $9.99 (ch_1)"},
		{"currency", append(slices.Clone(good[1:]), wrongCurrency), 4, 0, 0, "cust_1 owes $10.00 and was charged €10.00 (ch_1)"},
		{"a stranger", with(stranger), 4, 0, 0, `"cus_9" owes nothing and was charged $1.00 (ch_9)`},
	} {
		a := newAudit(all, test.movements)
		if a.right() || a.charged != test.charged || len(a.twice) != test.twice || len(a.missing) != test.missing || !slices.Contains(a.findings, test.finding) {
			t.Errorf("%s: charged %d twice %d missing %d, %q", test.name, a.charged, len(a.twice), len(a.missing), a.findings)
		}
	}
}

// Two customers who pay for each other give right sums, and are found.
func TestAuditLooksBehindSums(t *testing.T) {
	t.Parallel()
	a, b := customer(1, 1000, "usd"), customer(2, 2000, "usd")
	swappedA, swappedB := charged(a, "ch_1"), charged(b, "ch_2")
	swappedA.Amount, swappedB.Amount = 2000, 1000
	got := newAudit([]Customer{a, b}, []parts.Movement{swappedA, swappedB})
	if len(got.findings) != 2 || got.sums[0].owed != got.sums[0].chargedSum {
		t.Errorf("got %+v", got)
	}
}

func TestAuditOfSumsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	huge := charged(usd, "ch_1")
	huge.Amount = 1 << 62
	if a := newAudit([]Customer{usd}, []parts.Movement{huge, huge, huge}); !slices.ContainsFunc(a.findings, func(f string) bool { return strings.Contains(f, "cannot be told") }) {
		t.Errorf("got %q", a.findings)
	}
}

func TestOfPeriod(t *testing.T) {
	t.Parallel()
	january, unmarked := charged(usd, "ch_2"), charged(usd, "ch_3")
	january.Metadata = map[string]string{"billing_period": "2027-01"}
	unmarked.Metadata = nil
	got := ofPeriod([]parts.Movement{charged(usd, "ch_1"), january, unmarked}, "2026-12")
	if len(got) != 2 || got[0].Charge != "ch_1" || got[1].Charge != "ch_3" {
		t.Errorf("got %+v", got)
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	var movements []parts.Movement
	for i := range 101 {
		m := charged(usd, fmt.Sprint(i))
		m.At = now.Add(time.Duration(i) * 2 * time.Millisecond)
		movements = append(movements, m)
	}
	failed := charged(usd, "x")
	failed.Status, failed.At = "failed", now.Add(time.Hour)
	charges, took := span(append(movements, failed))
	if charges != 101 || took != 200*time.Millisecond || perSecond(charges, took) != 500 {
		t.Errorf("%d charges in %s, %.0f/s", charges, took, perSecond(charges, took))
	}
	if perSecond(1, 0) != 0 || perSecond(0, 0) != 0 {
		t.Error("one charge has a rate")
	}
}

func TestBooks(t *testing.T) {
	t.Parallel()
	movements := []parts.Movement{charged(usd, "ch_1"), charged(eur, "ch_2")}
	a := newAudit([]Customer{usd, eur}, movements)
	good := func() books { return booksOf(a) }
	if d := good().compare(a, movements); len(d) != 0 {
		t.Fatalf("equal books differ: %q", d)
	}
	for name, spoil := range map[string]func(*books){
		"a bill too few":        func(b *books) { b.Bills-- },
		"a bill unpaid":         func(b *books) { b.Paid, b.Open = 1, 1 },
		"another sum expected":  func(b *books) { b.Totals[0].Expected.Minor++ },
		"another sum taken":     func(b *books) { b.Totals[1].Taken.Minor-- },
		"a currency is missing": func(b *books) { b.Totals = b.Totals[:1] },
		"another charge":        func(b *books) { delete(b.charges, "ch_2"); b.charges["ch_3"] = true },
	} {
		b := good()
		spoil(&b)
		if d := b.compare(a, movements); len(d) != 1 {
			t.Errorf("%s: %q", name, d)
		}
	}
}

// booksOf are the service's books of charges that were made as they are owed.
func booksOf(a audit) books {
	b := books{Bills: a.customers, Paid: a.customers, charges: map[string]bool{"ch_1": true, "ch_2": true}}
	for _, s := range a.sums {
		b.Totals = append(b.Totals, struct {
			Currency string     `json:"currency"`
			Bills    int        `json:"bills"`
			Expected minorUnits `json:"expected"`
			Taken    minorUnits `json:"taken"`
		}{string(s.currency), s.customers, minorUnits{s.owed.Minor}, minorUnits{s.chargedSum.Minor}})
	}
	return b
}

// proxyBooksOf are the proxy's books of the same.
func proxyBooksOf(a audit) (b proxyBooks) {
	for _, s := range a.sums {
		b = append(b, parts.ProxySum{Currency: string(s.currency), Settled: s.chargedSum.Minor, Charges: int64(s.charges)})
	}
	return b
}

func TestProxyBooks(t *testing.T) {
	t.Parallel()
	a := newAudit([]Customer{usd, eur}, []parts.Movement{charged(usd, "ch_1"), charged(eur, "ch_2")})
	if d := proxyBooksOf(a).compare(a); len(d) != 0 {
		t.Fatalf("equal books differ: %q", d)
	}
	for name, spoil := range map[string]func(proxyBooks) proxyBooks{
		"another sum":           func(b proxyBooks) proxyBooks { b[0].Settled++; return b },
		"another count":         func(b proxyBooks) proxyBooks { b[1].Charges++; return b },
		"something is held":     func(b proxyBooks) proxyBooks { b[0].Held = 1; return b },
		"a currency is missing": func(b proxyBooks) proxyBooks { return b[:1] },
		"a currency too many":   func(b proxyBooks) proxyBooks { return append(b, parts.ProxySum{Currency: "jpy", Settled: 1}) },
	} {
		if d := spoil(proxyBooksOf(a)).compare(a); len(d) != 1 {
			t.Errorf("%s: %q", name, d)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	before, err := parts.ParseMetrics(strings.NewReader(`# HELP billonce_commits_total Committed transactions.
# TYPE billonce_commits_total counter
billonce_commits_total{path="delivery"} 100
billonce_commits_total{path="money"} 20
billonce_bills_decided_total 40
`))
	if err != nil {
		t.Fatal(err)
	}
	after, err := parts.ParseMetrics(strings.NewReader(`billonce_commits_total{path="delivery"} 200
billonce_commits_total{path="money"} 1.2e+02
billonce_commits_total{path="append"} 7
billonce_bills_decided_total 240
go_info{version="go1.26 {x} y"} 1
`))
	if err != nil {
		t.Fatal(err)
	}
	if c := costBetween(before, after); c != (cost{money: 100, delivery: 100, bills: 200}) ||
		c.commits() != "0.50 on the money path (claims, intent ids, outcomes), 0.50 of delivery (processors)" {
		t.Errorf("got %+v", c)
	}
	if c := costBetween(nil, map[string]float64{}); c.commits() != "not known" {
		t.Errorf("nothing measured is %+v", c)
	}
}

func TestOwes(t *testing.T) {
	t.Parallel()
	if got := kwd.Owes(); got != (domain.Money{Minor: 1230, Currency: "kwd"}) {
		t.Errorf("got %v", got)
	}
}
