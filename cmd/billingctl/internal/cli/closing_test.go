package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// endOfRun is a service with a run that is over, or is not for a reason.
func endOfRun(t *testing.T, why string) {
	t.Helper()
	const report = `{"billing_period":"2026-11","as_of":"Ae","bills":3,"open":0,"statuses":[{"status":"paid","bills":2},{"status":"settled","bills":1}],` +
		`"totals":[{"currency":"usd","bills":3,"expected_minor":14700,"paid_minor":9800,"closed_minor":4900,"open_minor":0,"taken_minor":9800,"surplus_minor":0,"refunded_minor":500,"refunds":1}],` +
		`"attempts":4,"declines":[{"code":"card_declined","decline_code":"stolen_card","class":"hard","declines":1}],"disputes":0,"facts":31,"facts_sha256":"fa","bills_sha256":"b1"}`
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.Method + " " + r.URL.Path {
		case "POST /v1/reconciliations":
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprint(w, `{"id":12,"state":"queued"}`)
		case "GET /v1/reconciliations/12":
			fmt.Fprint(w, `{"id":12,"state":"done","phase":"events"}`)
		case "POST /v1/runs/2026-11/close":
			if body, _ := io.ReadAll(r.Body); string(body) != `{"reconciliation_id":12}` {
				t.Errorf("it relies on %s", body)
			}
			if why != "" {
				w.WriteHeader(http.StatusUnprocessableEntity)
				fmt.Fprintf(w, `{"code":"run_not_over","detail":%q}`, why)
				return
			}
			fmt.Fprintf(w, `{"closing":{"at":"2026-12-09T08:00:00Z","by":"op","reconciliation_id":12,"report_sha256":"5e5e"},"report":%s}`, report)
		case "GET /v1/runs/2026-11/report":
			fmt.Fprint(w, report)
		case "GET /v1/runs/2026-11/report.csv":
			fmt.Fprint(w, "customer_id,billing_period\nacme,2026-11\n")
		default:
			t.Errorf("%s %s", r.Method, r.URL)
		}
	}))
	t.Cleanup(service.Close)
	t.Setenv("BILLINGCTL_URL", service.URL)
}

func TestRunsClose(t *testing.T) {
	endOfRun(t, "")
	got := billingctl(t, "", "runs", "close", "2026-11")
	for _, want := range []string{"2026-11: 3 bills, 0 open, 4 attempts, 0 disputes\n", "$147.00", "stolen_card", "\nclose: period=2026-11 bills=3 report_sha256=5e5e\n"} {
		if got.code != exitOK || !strings.Contains(got.out, want) {
			t.Errorf("%q is not in %+v", want, got)
		}
	}
	got = billingctl(t, "", "-o", "json", "runs", "close", "2026-11")
	if got.code != exitOK || !strings.Contains(got.out, `"report_sha256": "5e5e"`) {
		t.Errorf("as JSON: %+v", got)
	}
}

func TestRunsCloseSaysWhyNot(t *testing.T) {
	const why = "run 2026-11 cannot be closed: 1 bill is unknown; 2 bills are held"
	endOfRun(t, why)
	if got := billingctl(t, "", "runs", "close", "2026-11"); got.code != exitFailed || !strings.Contains(got.err, why) || got.out != "" {
		t.Errorf("%+v", got)
	}
}

func TestRunsReport(t *testing.T) {
	endOfRun(t, "")
	file := filepath.Join(t.TempDir(), "bills.csv")
	got := billingctl(t, "", "runs", "report", "2026-11", "--csv", file)
	if got.code != exitOK || !strings.Contains(got.out, "facts 31  fa\nbills 3  b1\n") {
		t.Errorf("%+v", got)
	}
	const list = "customer_id,billing_period\nacme,2026-11\n"
	if written, err := os.ReadFile(file); err != nil || string(written) != list {
		t.Errorf("the list is %q, %v", written, err)
	}
	if got := billingctl(t, "", "runs", "report", "2026-11", "--csv", "-"); got.code != exitOK || got.out != list {
		t.Errorf("the list alone: %+v", got)
	}
}
