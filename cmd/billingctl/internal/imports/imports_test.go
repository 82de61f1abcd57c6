package imports

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// line is a good row with some fields replaced; a value of "" removes one.
func line(change map[string]string) string {
	fields := map[string]string{
		"customer_id": `"cust_1"`, "stripe_customer_id": `"cus_1"`, "payment_method_id": `"pm_1"`, "amount_minor": `4900`, "currency": `"usd"`,
		"cadence": `"monthly"`, "anchor_day": `1`, "time_zone": `"Europe/Berlin"`, "starts_on": `"2026-12-01"`,
	}
	for name, value := range change {
		fields[name] = value
		if value == "" {
			delete(fields, name)
		}
	}
	var parts []string
	for name, value := range fields {
		parts = append(parts, fmt.Sprintf("%q: %s", name, value))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func TestParse(t *testing.T) {
	t.Parallel()
	r, err := parsed(line(nil))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		`{"customer_id":"cust_1","payment_method_id":"pm_1","stripe_customer_id":"cus_1"}`,
		`{"amount_minor":4900,"anchor_day":1,"cadence":"monthly","currency":"usd","customer_id":"cust_1","starts_on":"2026-12-01","time_zone":"Europe/Berlin"}`,
	} {
		if got := string(r.orders[i].Body); got != want || r.orders[i].Command != []string{register, activate}[i] {
			t.Errorf("%s %s, want %s", r.orders[i].Command, got, want)
		}
	}
}

// A bad row is refused before anything is sent, and every fault is named.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ line, want string }{
		{"", "not a JSON object"},
		{"[1]", "not a JSON object"},
		{"{\"a\": 1", "not a JSON object"},
		{"{\"a\": \xff}", "not valid UTF-8"},
		{line(nil) + " {}", "something follows the JSON object"},
		{strings.Replace(line(nil), "{", `{"currency": "usd", `, 1), "currency occurs more than once"},
		{line(map[string]string{"email": `"a@b"`, "billed_periods": `[]`}), "billed_periods is not a field of an import; email is not a field of an import"},
		{line(map[string]string{"billed_through": `"2026-13"`}), "billed_through must be a month (2026-11), a quarter (2026-Q3) or a year (2026), spelled exactly so"},
		{line(map[string]string{"billed_through": `"2026-Q3"`}), "billed_through must be a monthly period"},
		{line(map[string]string{"charges": `[]`}), "billed_through is required with charges"},
		{line(map[string]string{"billed_through": `"2026-10"`, "charges": `{}`}), "charges must be an array of objects"},
		{line(map[string]string{"billed_through": `"2026-10"`, "charges": `null`}), "charges must be an array of objects"},
		{line(map[string]string{"billed_through": `"2026-10"`, "charges": `[{"billing_period": "2026-11", "charge_id": "pi_1", "amount_minor": 0, "note": 1}, 7]`}),
			`charges[0].amount_minor must be positive; charges[0].billing_period lies behind billed_through; charges[0].charge_id must be a Stripe id beginning with "ch_"; charges[0].note is not a field of a charge; charges[1] must be an object: not a JSON object`},
		{line(map[string]string{"billed_through": `"2026-10"`, "charges": `[{"billing_period": "2026-10", "charge_id": "ch_1", "amount_minor": 4900}, {"billing_period": "2026-10", "charge_id": "ch_2", "amount_minor": 4900}]`}),
			"charges[1].billing_period overlaps another charge's"},
		{line(map[string]string{"customer_id": ""}), "customer_id is required"},
		{line(map[string]string{"currency": `"USD"`}), "currency must be lower case"},
		{line(map[string]string{"currency": `"kwd"`, "amount_minor": "1234"}), "amount_minor must end in 0: kwd amounts are charged in steps of 10 minor units"},
		{line(map[string]string{"amount_minor": `"4900"`}), "amount_minor must be an integer"},
		{line(map[string]string{"amount_minor": `null`}), "amount_minor must not be null"},
		{line(map[string]string{"time_zone": `"Mars/Olympus"`, "anchor_day": "32"}), "anchor_day must be 1 to 31; time_zone must be an IANA name such as Europe/Berlin"},
		{line(map[string]string{"payment_method_id": `"tok_1"`}), `payment_method_id must be a Stripe id beginning with "pm_" (or "card_" or "src_")`},
	} {
		if _, err := parsed(test.line); err == nil || err.Error() != test.want {
			t.Errorf("%s\n got %v\nwant %s", test.line, err, test.want)
		}
	}
}

// parsed is the row of a line of NDJSON.
func parsed(line string) (*row, error) {
	fields, err := readObject([]byte(line))
	if err != nil {
		return nil, err
	}
	return parse(7, fields)
}

// History goes between the customer and the subscription.
func TestParseHistory(t *testing.T) {
	t.Parallel()
	r, err := parsed(line(map[string]string{"billed_through": `"2026-11"`,
		"charges": `[{"billing_period": "2026-11", "charge_id": "ch_1", "amount_minor": 4900}, {"billing_period": "2026-10", "charge_id": "py_2", "amount_minor": 4500, "currency": "eur"}]`}))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range r.orders[1 : len(r.orders)-1] {
		got = append(got, o.Command+" "+string(o.Body))
	}
	want := []string{
		`import-history {"billed_through":"2026-11","customer_id":"cust_1"}`,
		`import-charge {"amount_minor":4900,"billing_period":"2026-11","charge_id":"ch_1","currency":"usd","customer_id":"cust_1"}`,
		`import-charge {"amount_minor":4500,"billing_period":"2026-10","charge_id":"py_2","currency":"eur","customer_id":"cust_1"}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// fakeService answers batches by a function of command and customer, and
// remembers what it was sent.
type fakeService struct {
	answer func(command, customer string) string // fields beside line
	sent   []string
	cutOff int // answers nothing behind so many lines, once
}

func (f *fakeService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).EnableFullDuplex() // as the service does
	lines := bufio.NewScanner(r.Body)
	most := f.cutOff
	f.cutOff = 0
	for n := 1; lines.Scan(); n++ {
		var order struct {
			Command string
			Body    struct {
				CustomerID string `json:"customer_id"`
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &order); err != nil {
			panic(err)
		}
		if most > 0 && n > most {
			panic(http.ErrAbortHandler)
		}
		f.sent = append(f.sent, order.Command+" "+order.Body.CustomerID)
		fmt.Fprintf(w, "{\"line\":%d,%s}\n", n, f.answer(order.Command, order.Body.CustomerID))
	}
}

func run(t *testing.T, f *fakeService, file string) (Result, []string, error) {
	t.Helper()
	return runWith(t, f, file, Options{})
}

func runWith(t *testing.T, f *fakeService, file string, o Options) (Result, []string, error) {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	o.Refused = func(e RowError) { refused = append(refused, e.Error()) }
	result, err := Run(t.Context(), c, strings.NewReader(file), o)
	return result, refused, err
}

func rows(ids ...string) string {
	var file strings.Builder
	for _, id := range ids {
		file.WriteString(line(map[string]string{"customer_id": `"` + id + `"`}) + "\n")
	}
	return file.String()
}

// A row whose customer is refused begins no subscription, and the others go on;
// rows are counted and named by the lines of the file.
func TestRunKeepsRowsWhole(t *testing.T) {
	t.Parallel()
	f := &fakeService{answer: func(command, customer string) string {
		switch {
		case command == "register-customer" && customer == "b":
			return `"status":409,"code":"already_registered","detail":"the customer is registered with other data"`
		case command == "activate-subscription" && customer == "c":
			return `"status":409,"code":"subscription_exists","detail":"the customer has a subscription already"`
		case customer == "d":
			return `"key":"k","replayed":true`
		}
		return `"key":"k"`
	}}
	result, refused, err := run(t, f, rows("a", "b")+"\n{}\n"+rows("c", "d"))
	if err != nil {
		t.Fatal(err)
	}
	if want := (Result{Rows: 5, Imported: 1, Replayed: 1, Failed: 3}); result != want {
		t.Errorf("got %+v, want %+v", result, want)
	}
	if len(refused) != 3 || !strings.HasPrefix(refused[0], "row 4: ") || !strings.Contains(refused[0], "customer_id is required") ||
		refused[1] != "row 2: register-customer: already_registered: the customer is registered with other data" ||
		refused[2] != "row 5: activate-subscription: subscription_exists: the customer has a subscription already" {
		t.Errorf("refused %q", refused)
	}
	for _, sent := range f.sent {
		if sent == "activate-subscription b" {
			t.Error("a subscription was begun for a customer who had been refused")
		}
	}
}

// What was not answered is sent again, and nothing else.
func TestRunSendsAgain(t *testing.T) {
	t.Parallel()
	busy := true
	f := &fakeService{cutOff: 2, answer: func(command, customer string) string {
		if command == "activate-subscription" && customer == "a" && busy {
			busy = false
			return `"status":503,"code":"try_again","detail":"later"`
		}
		return `"key":"k"`
	}}
	result, refused, err := run(t, f, rows("a", "b", "c"))
	if err != nil || len(refused) > 0 || result != (Result{Rows: 3, Imported: 3}) {
		t.Errorf("got %+v, %q, %v", result, refused, err)
	}
	want := "register-customer a,register-customer b,register-customer c," +
		"activate-subscription a,activate-subscription b,activate-subscription c,activate-subscription a"
	// What the service had read when it was cut off may or may not have been
	// answered; what follows must come after it, once.
	got := strings.Join(f.sent, ",")
	if got != want && got != "register-customer a,register-customer b,"+want {
		t.Errorf("sent %s", got)
	}
}

// A service that refuses the whole request ends the import at once.
func TestRunGivesUp(t *testing.T) {
	t.Parallel()
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"code":"forbidden","detail":"the token lacks the scope dispatch"}`)
	}))
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Run(t.Context(), c, strings.NewReader(rows("a")), Options{})
	if err == nil || !strings.Contains(err.Error(), "import row 1 and what follows: forbidden: the token lacks the scope dispatch") || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// A long file goes in parts, each within its bound.
func TestRunInParts(t *testing.T) {
	t.Parallel()
	f := &fakeService{answer: func(string, string) string { return `"key":"k"` }}
	var ids []string
	for i := range 2*chunk + 1 {
		ids = append(ids, fmt.Sprintf("c%d", i))
	}
	result, _, err := run(t, f, rows(ids...))
	if err != nil || result.Imported != len(ids) || len(f.sent) != 2*len(ids) {
		t.Errorf("got %+v of %d, %d commands, %v", result, len(ids), len(f.sent), err)
	}
	if _, _, err := run(t, f, rows("a")+strings.Repeat("x", lineMost+1)); err == nil || !strings.HasPrefix(err.Error(), "row 2: the line is longer than") {
		t.Errorf("an endless line: %v", err)
	}
}

// CSV says the same as NDJSON, and a bad row is one bad row.
func TestRunCSV(t *testing.T) {
	t.Parallel()
	f := &fakeService{answer: func(string, string) string { return `"key":"k"` }}
	file := "\ufeffcustomer_id,stripe_customer_id,payment_method_id,amount_minor,currency,cadence,anchor_day,time_zone,starts_on,billed_through,charges\r\n" +
		"a,cus_1,pm_1,4900,usd,monthly,1,Europe/Berlin,2026-12-01,,\r\n" +
		`b,cus_2,pm_2,4900,usd,monthly,1,Europe/Berlin,2026-01-01,2026-10,"[{""billing_period"": ""2026-10"", ""charge_id"": ""ch_1"", ""amount_minor"": 4900}]"` + "\r\n" +
		"c,cus_3,pm_3,49.00,usd,monthly,1,Europe/Berlin,2026-12-01,,\r\n" +
		"d,cus_4\r\n" +
		"e,cus_5,pm_5,4900,usd,monthly,1,Europe/Berlin,2026-12-01,2026-11,ch_1\r\n"
	result, refused, err := runWith(t, f, file, Options{Format: CSV})
	if err != nil || result != (Result{Rows: 5, Imported: 2, Failed: 3}) {
		t.Errorf("got %+v, %v", result, err)
	}
	if want := []string{
		"row 4: amount_minor must be an integer",
		"row 5: it has 2 cells, the first line names 11 columns",
		"row 6: charges must be an array of objects",
	}; !slices.Equal(refused, want) {
		t.Errorf("refused %q", refused)
	}
	if got := strings.Join(f.sent, ","); got != "register-customer a,register-customer b,activate-subscription a,import-history b,import-charge b,activate-subscription b" {
		t.Errorf("sent %s", got)
	}
	for file, want := range map[string]string{
		"":                          "row 1: the first line must name the columns",
		"customer_id,email\n":       `row 1: "email" is not a column of an import`,
		"customer_id,customer_id\n": "row 1: the column customer_id occurs more than once",
		"customer_id\n\"a\nb":       "row 2: extraneous or missing \" in quoted-field",
		"customer_id\n\"" + strings.Repeat("x\n", lineMost): "row 2: the line is longer than 1048576 bytes",
	} {
		if _, _, err := runWith(t, f, file, Options{Format: CSV}); err == nil || err.Error() != want {
			t.Errorf("%.40q: %v, want %s", file, err, want)
		}
	}
}

// A dry run sends nothing, and finds what the rows alone can tell.
func TestDryRun(t *testing.T) {
	t.Parallel()
	f := &fakeService{answer: func(string, string) string { panic("asked") }}
	file := rows("a", "b", "a") + line(map[string]string{"customer_id": `"b"`, "amount_minor": "5900"}) + "\n" + line(map[string]string{"currency": `"xyz"`})
	result, refused, err := runWith(t, f, file, Options{DryRun: true})
	if err != nil || result != (Result{Rows: 5, Imported: 3, Failed: 2}) || len(f.sent) > 0 {
		t.Errorf("got %+v, %v, sent %q", result, err, f.sent)
	}
	if len(refused) != 2 || refused[0] != "row 4: customer_id stands in an earlier row, with other values" || !strings.HasPrefix(refused[1], "row 5: currency ") {
		t.Errorf("refused %q", refused)
	}
}

// shelf is a list of events, two a page.
type shelf []sagas.News

func (s shelf) Events(_ context.Context, l sagas.EventListing) (sagas.EventPage, error) {
	at := 0
	if l.After != "" {
		at = 1 + slices.IndexFunc(s, func(n sagas.News) bool { return n.EventID == l.After })
	}
	end := min(at+2, len(s))
	return sagas.EventPage{News: s[at:end], More: end < len(s)}, nil
}

// A row whose next bills would be charged under a key that somebody has used is
// refused; Billonce's own charge of the very bill is no reason.
func TestUsedKeys(t *testing.T) {
	t.Parallel()
	key := func(customer, p string, attempt int) string {
		q, err := domain.ParsePeriod(p)
		if err != nil {
			t.Fatal(err)
		}
		return string(domain.ChargeKey(domain.CustomerID(customer), q, attempt))
	}
	stripe := shelf{
		{EventID: "evt_1", ObjectID: "pi_1", IdempotencyKey: key("a", "2026-12", 1) + "-intent"},
		{EventID: "evt_2", ObjectID: "ch_2", IdempotencyKey: key("b", "2027-01", 2)},
		{EventID: "evt_3", ObjectID: "pi_3", IdempotencyKey: key("c", "2026-12", 1), Charge: &sagas.Found{CustomerID: "c", Period: "2026-12"}},
		{EventID: "evt_4", ObjectID: "pi_4", IdempotencyKey: key("d", "2026-11", 1)}, // before the first bill
		{EventID: "evt_5", ObjectID: "pi_5", IdempotencyKey: "7f1b1c44-8f6e-4a76-8b0c-0a37f1d6b1aa"},
	}
	read := 0
	used, err := ReadUsedKeys(t.Context(), stripe, func(n int) { read = n })
	if err != nil || read != 5 || used.Len() != 4 {
		t.Fatalf("%d keys of %d events, %v", used.Len(), read, err)
	}
	f := &fakeService{answer: func(string, string) string { return `"key":"k"` }}
	result, refused, err := runWith(t, f, rows("a", "b", "c", "d"), Options{Used: used})
	if err != nil || result != (Result{Rows: 4, Imported: 2, Failed: 2}) || len(refused) != 2 ||
		!strings.HasPrefix(refused[0], "row 1: the charge key of 2026-12, ") || !strings.Contains(refused[0], "it made pi_1") || !strings.HasPrefix(refused[1], "row 2: the charge key of 2027-01, ") {
		t.Errorf("got %+v, %q, %v", result, refused, err)
	}
}
