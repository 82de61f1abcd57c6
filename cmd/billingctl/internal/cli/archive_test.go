package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/migrations"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// The log goes into a file, is checked there, is built anew from it, and
// differs in nothing.
func TestExportVerifyImport(t *testing.T) {
	log := projectiontest.New(t)
	t.Setenv("DATABASE_URL", pgtest.DSN(t))
	aMonth(t, log, 20)
	deliver(t, log, processorsOf(log.Store)...)
	if ran := billingctl(t, "", "verify"); ran.code != exitOK || ran.out != "verify: events=60 streams=20 differences=0\n" || !strings.Contains(ran.err, "verifying: 60 of 60 events") {
		t.Fatalf("verify: %+v", ran)
	}
	file := filepath.Join(t.TempDir(), "log.ndjson")
	ran := billingctl(t, "", "events", "export", file)
	if ran.code != exitOK || !strings.HasPrefix(ran.out, "export: events=60 command_keys=0 request_keys=0 last_position=60 sha256=") || !strings.Contains(ran.err, "exporting: 60 of 60 lines") {
		t.Fatalf("export: %+v", ran)
	}
	sum := strings.TrimSpace(ran.out[strings.Index(ran.out, "sha256=")+len("sha256="):])
	text, err := os.ReadFile(file)
	if err != nil || strings.Count(string(text), "\n") != 62 || !strings.Contains(string(text), sum) {
		t.Fatalf("%d lines, %v", strings.Count(string(text), "\n"), err)
	}
	if left, err := filepath.Glob(file + "*"); err != nil || len(left) != 1 {
		t.Errorf("files are left: %v, %v", left, err)
	}
	if nobody := billingctl(t, "", "events", "export", "--stream", "nobody"); nobody.code != exitFailed || nobody.err != "billingctl: there is no stream customer/nobody\n" {
		t.Errorf("a stream of nobody: %+v", nobody)
	}
	if piped := billingctl(t, "", "events", "export", "--stream", "cust_1"); piped.code != exitOK || strings.Count(piped.out, "\n") != 5 || !strings.Contains(piped.err, "export: events=3 ") {
		t.Errorf("a stream into a pipe: %+v", piped)
	}
	if ran := billingctl(t, "", "events", "import", file); ran.code != exitFailed || !strings.Contains(ran.err, "a log is imported into a new database only: events is not empty") {
		t.Errorf("into a log that is there: %+v", ran)
	}

	there := pgtest.Empty(t)
	if err := migrations.Up(t.Context(), there); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DATABASE_URL", there)
	damaged := bytes.Replace(text, []byte("pm_1"), []byte("pm_2"), 1)
	if ran := billingctl(t, string(damaged), "events", "import", "-"); ran.code != exitFailed || !strings.Contains(ran.err, "line 2: it was changed after it was written") {
		t.Errorf("a damaged file: %+v", ran)
	}
	if ran := billingctl(t, string(text), "events", "import", "-"); ran.code != exitOK || ran.out != "import: events=60 command_keys=0 request_keys=0 last_position=60\n" {
		t.Fatalf("import: %+v", ran)
	}
	again := billingctl(t, "", "events", "export")
	if again.code != exitOK || !bytes.Equal(eventsIn([]byte(again.out)), eventsIn(text)) {
		t.Errorf("the events exported again are others")
	}
	ran = billingctl(t, "", "verify")
	if ran.code != exitOK || !strings.Contains(ran.out, "lag: bills has 40 events to handle, and 0 customers set aside") || !strings.HasSuffix(ran.out, "verify: events=60 streams=20 differences=0\n") {
		t.Errorf("before its processors have begun: %+v", ran)
	}

	t.Setenv("DATABASE_URL", "") // a file is checked without one
	if ran := billingctl(t, "", "verify", "--export", file); ran.code != exitOK || ran.out != "verify: events=60 streams=20 differences=0\n" {
		t.Errorf("the file: %+v", ran)
	}
	if ran := billingctl(t, string(damaged), "verify", "--export", "-"); ran.code != exitFailed || !strings.Contains(ran.out, "file: line 2: ") || !strings.HasSuffix(ran.out, "verify: events=0 streams=0 differences=1\n") {
		t.Errorf("the damaged file: %+v", ran)
	}
}

// eventsIn are the events of an export without their sums, which depend on the
// header's time.
func eventsIn(file []byte) (events []byte) {
	for line := range bytes.Lines(file) {
		if bytes.HasPrefix(line, []byte(`{"line":"event"`)) {
			events = append(events, line[:bytes.LastIndex(line, []byte(`,"sum"`))]...)
		}
	}
	return events
}

// Differences are printed with their remedies, and the exit status tells.
func TestVerifyPrintsDifferences(t *testing.T) {
	log := projectiontest.New(t)
	t.Setenv("DATABASE_URL", pgtest.DSN(t))
	aMonth(t, log, 5)
	deliver(t, log, processorsOf(log.Store)...)
	for _, sql := range []string{`UPDATE bills SET status = 'void'`, `UPDATE billing_records SET state = 'reserved' WHERE customer_id = 'cust_3'`} {
		if _, err := log.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ran := billingctl(t, "", "verify", "--show", "2")
	for _, want := range []string{
		"row: billing_records cust_3 2026-12: it says reserved, the log says paid\n    billingctl reconcile --period 2026-12 ",
		`2026-12: status is "void", the log makes "paid"` + "\n    billingctl replay bills\n",
		"read-model: and 3 more; --show 0 prints all\n",
	} {
		if !strings.Contains(ran.out, want) {
			t.Errorf("%q is not in\n%s", want, ran.out)
		}
	}
	if ran.code != exitFailed || !strings.HasSuffix(ran.out, "\nverify: events=15 streams=5 differences=6\n") {
		t.Errorf("got %+v", ran)
	}
	ran = billingctl(t, "", "-o", "json", "verify")
	lines := strings.Split(strings.TrimSpace(ran.out), "\n")
	var d struct{ Kind, About, Detail, Remedy string }
	if err := json.Unmarshal([]byte(lines[0]), &d); err != nil || len(lines) != 7 || d.Kind == "" || d.About == "" || d.Detail == "" || d.Remedy == "" {
		t.Errorf("as JSON: %+v, %v", ran, err)
	}
	if ran.code != exitFailed || lines[6] != `{"events":15,"streams":5,"differences":6}` {
		t.Errorf("as JSON: %+v", ran)
	}
	if ran := billingctl(t, "", "replay", "bills"); ran.code != exitOK {
		t.Fatalf("the remedy: %+v", ran)
	}
	if ran := billingctl(t, "", "verify"); !strings.HasSuffix(ran.out, "verify: events=15 streams=5 differences=1\n") {
		t.Errorf("after the remedy: %+v", ran)
	}
}

// serveLog answers as the service's reads of the log do.
func serveLog(t *testing.T, log *projectiontest.Log) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := projections.FactsQuery{Stream: r.URL.Query().Get("stream"), After: r.URL.Query().Get("after"), Limit: factsOfPage}
		list, err := log.Reads().Facts(r.Context(), q)
		if err != nil {
			t.Error(err)
		}
		if err := json.NewEncoder(w).Encode(list); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	t.Setenv("BILLINGCTL_URL", s.URL)
}

// A stream is shown as it was at a version or a time.
func TestShowAt(t *testing.T) {
	log := projectiontest.New(t)
	serveLog(t, log)
	november := domain.PeriodOf(domain.Monthly, 2026, 11)
	price := domain.Money{Minor: 4900, Currency: "usd"}
	facts := []domain.Event{
		domain.CustomerRegistered{CustomerID: "acme", StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
		domain.SubscriptionActivated{CustomerID: "acme", Money: price, Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "UTC", StartsOn: domain.Date{Year: 2026, Month: 11, Day: 1}},
		domain.ChargeRequested{CustomerID: "acme", BillingPeriod: november, Attempt: 1, Key: domain.ChargeKey("acme", november, 1), Money: price, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
		domain.CustomerBilled{CustomerID: "acme", BillingPeriod: november, Attempt: 1, ChargeID: "ch_1", IntentID: "pi_1", Money: price, Source: domain.SourceAnswer},
		domain.PaymentMethodChanged{CustomerID: "acme", PaymentMethodID: "pm_2"},
	}
	var times []time.Time
	for _, f := range facts {
		times = append(times, log.Given("acme", f)[0].RecordedAt)
	}
	for range factsOfPage + 3 { // more than a page
		log.Given("acme", domain.PaymentMethodChanged{CustomerID: "acme", PaymentMethodID: "pm_3"})
	}
	at := func(t time.Time) string { return t.Format(time.RFC3339Nano) }
	for moment, want := range map[string]struct {
		version            int
		method, bill, subs string
	}{
		"1": {1, "pm_1", "", ""}, "2": {2, "pm_1", "", "active"}, "3": {3, "pm_1", "requested", "active"}, "4": {4, "pm_1", "paid", "active"}, "5": {5, "pm_2", "paid", "active"},
		"207":        {207, "pm_3", "paid", "active"},
		at(times[2]): {3, "pm_1", "requested", "active"}, at(times[3].Add(-time.Microsecond)): {3, "pm_1", "requested", "active"},
		at(time.Now().Add(time.Hour)): {208, "pm_3", "paid", "active"},
	} {
		ran := billingctl(t, "", "-o", "json", "events", "show", "acme", "--at", moment)
		var got then
		if err := json.Unmarshal([]byte(ran.out), &got); err != nil || ran.code != exitOK {
			t.Fatalf("%s: %v %+v", moment, err, ran)
		}
		bill, subs := "", ""
		if len(got.State.Bills) > 0 {
			bill = string(got.State.Bills[0].Status)
		}
		if got.State.Subscription != nil {
			subs = string(got.State.Subscription.Status)
		}
		if got.Version != want.version || len(got.Events) != want.version || got.State.PaymentMethodID != want.method || bill != want.bill || subs != want.subs {
			t.Errorf("%s: version %d with %d events, method %s, bill %q, subscription %q; want %+v", moment, got.Version, len(got.Events), got.State.PaymentMethodID, bill, subs, want)
		}
	}
	ran := billingctl(t, "", "events", "show", "acme", "--at", "4")
	for _, want := range []string{"customer/acme/4  customer.billed.v1", "\ncustomer/acme at version 4, ", "active        $49.00", "2026-11  paid    $49.00"} {
		if !strings.Contains(ran.out, want) {
			t.Errorf("%q is not in\n%s", want, ran.out)
		}
	}
	for moment, want := range map[string]string{
		"209":                  "customer/acme has no version 209; its newest is 208",
		"2020-01-01T00:00:00Z": "customer/acme had no event by 2020-01-01T00:00:00Z; its first is of " + at(times[0]),
	} {
		if ran := billingctl(t, "", "events", "show", "acme", "--at", moment); ran.code != exitFailed || ran.err != "billingctl: "+want+"\n" || ran.out != "" {
			t.Errorf("%s: %+v, want %s", moment, ran, want)
		}
	}
	for _, args := range [][]string{{"show", "nobody", "--at", "1"}, {"show", "nobody"}} {
		if ran := billingctl(t, "", append([]string{"events"}, args...)...); ran.code != exitFailed || ran.err != "billingctl: there is no stream customer/nobody\n" {
			t.Errorf("events %v: %d %q %q", args, ran.code, ran.out, ran.err)
		}
	}
	if _, err := log.Pool.Exec(t.Context(), `UPDATE events SET event_type = 'tomorrow.v1' WHERE stream_version = 3`); err != nil {
		t.Fatal(err)
	}
	if ran := billingctl(t, "", "events", "show", "acme", "--at", "4"); ran.code != exitFailed || !strings.Contains(ran.err, "version 3: event tomorrow.v1, schema version 1, is not known to this build") {
		t.Errorf("an unknown event: %+v", ran)
	}
	if ran := billingctl(t, "", "events", "show", "acme", "--at", "2"); ran.code != exitOK {
		t.Errorf("before the unknown event: %+v", ran)
	}
}
