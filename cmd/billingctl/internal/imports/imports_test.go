package imports

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
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
	r, err := parse(7, []byte(line(nil)))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		`{"customer_id":"cust_1","payment_method_id":"pm_1","stripe_customer_id":"cus_1"}`,
		`{"amount_minor":4900,"anchor_day":1,"cadence":"monthly","currency":"usd","customer_id":"cust_1","starts_on":"2026-12-01","time_zone":"Europe/Berlin"}`,
	} {
		if got := string(r.orders[i].Body); got != want || r.orders[i].Command != steps[i] {
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
		{line(map[string]string{"email": `"a@b"`, "billed_periods": `[]`}), "billed_periods is not a field of an import in this version; email is not a field of an import in this version"},
		{line(map[string]string{"customer_id": ""}), "customer_id is required"},
		{line(map[string]string{"currency": `"USD"`}), "currency must be lower case"},
		{line(map[string]string{"currency": `"kwd"`, "amount_minor": "1234"}), "amount_minor must end in 0: kwd amounts are charged in steps of 10 minor units"},
		{line(map[string]string{"amount_minor": `"4900"`}), "amount_minor must be an integer"},
		{line(map[string]string{"amount_minor": `null`}), "amount_minor must not be null"},
		{line(map[string]string{"time_zone": `"Mars/Olympus"`, "anchor_day": "32"}), "anchor_day must be 1 to 31; time_zone must be an IANA name such as Europe/Berlin"},
		{line(map[string]string{"payment_method_id": `"tok_1"`}), `payment_method_id must be a Stripe id beginning with "pm_" (or "card_" or "src_")`},
	} {
		if _, err := parse(1, []byte(test.line)); err == nil || err.Error() != test.want {
			t.Errorf("%s\n got %v\nwant %s", test.line, err, test.want)
		}
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
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	result, err := Run(t.Context(), c, strings.NewReader(file), Options{Refused: func(e RowError) { refused = append(refused, e.Error()) }})
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
