package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// document reads one as it is answered.
func (r *replica) document(token, path string) string {
	r.t.Helper()
	status, text := r.send(token, http.MethodGet, path, "")
	if status != http.StatusOK {
		r.t.Fatalf("%s: %d %s", path, status, text)
	}
	return string(text)
}

// TestARunIsClosed: a run closes when its bills have ended and the books are
// equal to Stripe's, and says why not until then. Its report is the same to the
// byte whatever happens to the run's bills afterwards, until it is closed once
// more.
func TestARunIsClosed(t *testing.T) {
	h := newHouse(t)
	r := h.start(twoTokens(t))
	r.token = "operator"
	h.fault(sim.Fault{Kind: "decline", Code: "stolen_card", Times: -1, Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/confirm", Customer: "cus_poor"}})
	r.subscribe("acme", "bolt", "poor")
	h.november()
	standing := func(want string) { await(t, want, func() bool { return fmt.Sprint(r.tally()) == want }) }
	standing("map[declined:1 paid:2]")

	reconcile := func() (id int64) {
		var v struct {
			ID    int64
			State string
		}
		if status := r.call("operator", http.MethodPost, "/v1/reconciliations", `{"period":"2026-11"}`, &v); status != http.StatusAccepted {
			t.Fatalf("reconcile: %d", status)
		}
		path := fmt.Sprintf("/v1/reconciliations/%d", v.ID)
		await(t, "it is compared with Stripe", func() bool { r.call("caller", http.MethodGet, path, "", &v); return v.State == "done" })
		return v.ID
	}
	const path = "/v1/runs/2026-11"
	type closing struct {
		Code, Detail string
		Closing      struct {
			By           string `json:"by"`
			ReportSHA256 string `json:"report_sha256"`
		}
		Report struct {
			Bills       int
			BillsSHA256 string `json:"bills_sha256"`
			Totals      []struct {
				Currency string
				Paid     int64 `json:"paid_minor"`
				Closed   int64 `json:"closed_minor"`
				Refunded int64 `json:"refunded_minor"`
			}
			Declines []struct {
				DeclineCode string `json:"decline_code"`
				Declines    int
			}
		}
	}
	end := func(token, body string) (status int, v closing) {
		status = r.call(token, http.MethodPost, path+"/close", body, &v)
		return status, v
	}
	refused := func(why string, status int, v closing) {
		t.Helper()
		if status != http.StatusUnprocessableEntity || v.Code != "run_not_over" || !strings.Contains(v.Detail, why) {
			t.Errorf("%d %s %q, want %q", status, v.Code, v.Detail, why)
		}
	}
	if status, v := end("caller", `{}`); status != http.StatusForbidden {
		t.Errorf("without the scope operate: %d %+v", status, v)
	}
	if status, v := end("operator", `{}`); status != http.StatusNotFound || v.Code != "reconciliation_not_found" {
		t.Errorf("before anything was compared: %d %+v", status, v)
	}
	first := reconcile()
	status, v := end("operator", `{}`)
	refused("1 bill is declined", status, v)

	if status := r.dispatch("settle-billing", "wire-1", `{"customer_id":"poor","billing_period":"2026-11","reference":"wire 1"}`); status != http.StatusOK {
		t.Fatalf("settle: %d", status)
	}
	standing("map[paid:2 settled:1]")
	status, v = end("operator", fmt.Sprintf(`{"reconciliation_id":%d}`, first))
	refused("happened since it was compared with Stripe", status, v)

	shop, err := h.stripe.PlantCharge(sim.Plant{Customer: "cus_shop", Amount: 777, Currency: "usd"})
	if err != nil {
		t.Fatal(err)
	}
	reconcile()
	status, v = end("operator", `{}`)
	refused("1 difference that is neither", status, v)
	if status := r.call("operator", http.MethodPost, "/v1/reconciliations/dismissals", fmt.Sprintf(`{"kind":"orphan","subject":%q,"reason":"the shop's own"}`, shop.Charge), nil); status != http.StatusOK {
		t.Fatalf("dismiss: %d", status)
	}

	status, v = end("operator", `{}`)
	if status != http.StatusOK || v.Closing.By != "op" || v.Report.Bills != 3 || len(v.Report.Totals) != 1 || v.Report.Totals[0].Paid != 2000 || v.Report.Totals[0].Closed != 1000 ||
		len(v.Report.Declines) != 1 || v.Report.Declines[0].DeclineCode != "stolen_card" {
		t.Fatalf("it is not closed: %d %+v", status, v)
	}
	sum := func(text string) string { digest := sha256.Sum256([]byte(text)); return hex.EncodeToString(digest[:]) }
	report, bills := r.document("caller", path+"/report"), r.document("caller", path+"/report.csv")
	if sum(report) != v.Closing.ReportSHA256 || sum(bills) != v.Report.BillsSHA256 || strings.Count(bills, "\n") != 4 || !strings.Contains(bills, "poor,2026-11,settled,usd,1000,0,0,1,,pi_") {
		t.Errorf("report %s\nbills %s\nclosing %+v", report, bills, v)
	}
	if run := r.document("caller", path); !strings.Contains(run, v.Closing.ReportSHA256) {
		t.Errorf("the run does not tell of its closing: %s", run)
	}
	if _, again := end("operator", `{}`); again.Closing != v.Closing || h.number(`SELECT count(*) FROM events WHERE event_type = 'run.closed.v1'`) != 1 {
		t.Errorf("closed again: %+v", again)
	}

	// What happens later does not change the report of the closing.
	if status := r.dispatch("refund-charge", "refund-1", `{"customer_id":"acme","billing_period":"2026-11","refund_id":"r-1","amount_minor":300}`); status != http.StatusOK {
		t.Fatalf("refund: %d", status)
	}
	await(t, "the refund is made", func() bool {
		return h.number(`SELECT count(*) FROM events WHERE event_type = 'refund.recorded.v1'`) == 1
	})
	if now := r.document("caller", path+"/report"); now != report {
		t.Errorf("the report has become\n%s, it was\n%s", now, report)
	}
	reconcile()
	if status, v = end("operator", `{}`); status != http.StatusOK || v.Report.Totals[0].Refunded != 300 || v.Closing.ReportSHA256 == sum(report) {
		t.Errorf("closed once more: %d %+v", status, v)
	}
	if status := r.call("operator", http.MethodPost, "/v1/runs/november/close", `{}`, nil); status != http.StatusBadRequest {
		t.Errorf("a run that is none: %d", status)
	}
	if status := r.call("operator", http.MethodGet, "/v1/runs/2031-11/report", "", nil); status != http.StatusNotFound {
		t.Errorf("a run that is not known: %d", status)
	}
}
