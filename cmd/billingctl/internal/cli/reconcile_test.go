package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// books is a service that reconciles: it is at it when asked first, and then
// has found what it is told.
func books(t *testing.T, findings []string, totals string) {
	t.Helper()
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const head = `"id":7,"scope":"period 2026-11","objects":700,"charges":350,"bills":350,"expected":350,"events":900`
		switch asked++; {
		case r.Method == http.MethodPost:
			if body, _ := io.ReadAll(r.Body); r.URL.Path != "/v1/reconciliations" || string(body) != `{"period":"2026-11"}` {
				t.Errorf("asked for %s with %s", r.URL.Path, body)
			}
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprintf(w, `{%s,"state":"queued"}`, head)
		case asked == 2:
			fmt.Fprintf(w, `{%s,"state":"running","phase":"charges","findings":[]}`, head)
		case asked == 3:
			fmt.Fprintf(w, `{%s,"state":"running","phase":"bills","findings":[]}`, head)
		case r.URL.Query().Get("cursor") != "" || len(findings) == 0:
			fmt.Fprintf(w, `{%s,"state":"done",%s,"findings":[%s]}`, head, totals, strings.Join(findings[min(1, len(findings)):], ","))
		default:
			fmt.Fprintf(w, `{%s,"state":"done",%s,"findings":[%s],"next_cursor":"more"}`, head, totals, findings[0])
		}
	}))
	t.Cleanup(s.Close)
	t.Setenv("BILLINGCTL_URL", s.URL)
	t.Setenv("BILLINGCTL_TOKEN", "secret")
}

func TestReconcile(t *testing.T) {
	findings := []string{
		`{"kind":"duplicate","subject":"ch_2","customer_id":"acme","billing_period":"2026-11","amount":{"minor":5000,"currency":"usd","display":"$50.00"},"detail":"paid twice","repaired":false,"action":"a refund is proposed"}`,
		`{"kind":"unrecorded","subject":"ch_3","customer_id":"other","billing_period":"2026-11","detail":"the log said unknown","repaired":true,"action":"recorded as recovered"}`,
	}
	const totals = `"missing":0,"orphans":0,"mismatches":0,"duplicates":1,"repaired":1,"unrepaired":1`
	const line = "reconcile: bills=350 charges=350 missing=0 orphans=0 mismatches=0 duplicates=1 repaired=1 dismissed=0\n"

	books(t, findings, totals)
	got := billingctl(t, "", "reconcile", "--period", "2026-11")
	if got.code != exitFailed || !strings.HasSuffix(got.out, line) || !strings.Contains(got.out, "$50.00") ||
		!strings.Contains(got.out, "a refund is proposed") || !strings.Contains(got.out, "repaired: recorded as recovered") {
		t.Errorf("with something that is not repaired: %+v", got)
	}
	if !strings.Contains(got.err, "charges: ") || !strings.Contains(got.err, "bills: 350 of 350") {
		t.Errorf("the progress is\n%s", got.err)
	}

	books(t, findings, totals)
	got = billingctl(t, "", "-o", "json", "reconcile", "--period", "2026-11")
	var v struct {
		Findings   []finding `json:"findings"`
		NextCursor string    `json:"next_cursor"`
	}
	if err := json.Unmarshal([]byte(got.out), &v); err != nil || len(v.Findings) != 2 || v.NextCursor != "" || got.code != exitFailed || !strings.HasSuffix(got.err, line) {
		t.Errorf("as JSON, %v: %+v", err, got)
	}

	books(t, nil, `"missing":0,"orphans":0,"mismatches":0,"duplicates":0,"repaired":0,"unrepaired":0`)
	got = billingctl(t, "", "reconcile", "--period", "2026-11")
	if got.code != exitOK || !strings.HasSuffix(got.out, "the books agree\nreconcile: bills=350 charges=350 missing=0 orphans=0 mismatches=0 duplicates=0 repaired=0 dismissed=0\n") {
		t.Errorf("where the books agree: %+v", got)
	}
}

// What was dismissed is counted, printed when asked for, and no failure.
func TestReconcileDismissed(t *testing.T) {
	findings := []string{`{"kind":"orphan","subject":"ch_9","detail":"it has no markers of ours","repaired":false,"action":"find out","dismissed":{"dismissed_by":"ada","reason":"the shop's own"}}`}
	const totals = `"missing":0,"orphans":0,"mismatches":0,"duplicates":0,"repaired":0,"unrepaired":0,"dismissed":1`
	const line = "reconcile: bills=350 charges=350 missing=0 orphans=0 mismatches=0 duplicates=0 repaired=0 dismissed=1\n"
	books(t, findings, totals)
	got := billingctl(t, "", "reconcile", "--period", "2026-11")
	if got.code != exitOK || !strings.HasSuffix(got.out, "the books agree, but for what was dismissed: --all prints it\n"+line) || strings.Contains(got.out, "ch_9") {
		t.Errorf("with something dismissed: %+v", got)
	}
	books(t, findings, totals)
	got = billingctl(t, "", "reconcile", "run", "--period", "2026-11", "--all")
	if got.code != exitOK || !strings.HasSuffix(got.out, line) || !strings.Contains(got.out, "ch_9") || !strings.Contains(got.out, "dismissed by ada: the shop's own") {
		t.Errorf("with --all: %+v", got)
	}

	sent := serve(t, http.StatusOK, `{"kind":"orphan","subject":"ch_9","reason":"the shop's own","dismissed_by":"ada","dismissed_at":"2026-11-15T12:00:00Z"}`)
	got = billingctl(t, "", "reconcile", "dismiss", "orphan", "ch_9", "--reason", "the shop's own")
	if got.code != exitOK || got.out != "orphan ch_9 is dismissed by ada\n" || sent.path != "/v1/reconciliations/dismissals" ||
		sent.body != `{"kind":"orphan","reason":"the shop's own","subject":"ch_9"}` {
		t.Errorf("sent %+v; %+v", sent, got)
	}
	if got := billingctl(t, "", "reconcile", "dismiss", "orphan", "ch_9"); got.code != exitUsage {
		t.Errorf("without a reason: %+v", got)
	}
}

// A proposal is carried out or dismissed by its charge; the command says so
// under a name that is the charge's own.
func TestRefunds(t *testing.T) {
	const proposals = `{"items":[{"customer_id":"acme","billing_period":"2026-11","status":"proposed","charge_id":"ch_2","amount":{"minor":5000,"currency":"usd","display":"$50.00"},"reason":"a second success"}]}`
	var sent []request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			if r.URL.Query().Get("charge") == "ch_9" {
				fmt.Fprint(w, `{"items":[]}`)
				return
			}
			fmt.Fprint(w, proposals)
			return
		}
		body, _ := io.ReadAll(r.Body)
		sent = append(sent, request{r.URL.String(), r.Header.Get("Idempotency-Key"), r.Header.Get("Authorization"), string(body)})
		fmt.Fprint(w, aReceipt)
	}))
	t.Cleanup(s.Close)
	t.Setenv("BILLINGCTL_URL", s.URL)
	t.Setenv("BILLINGCTL_TOKEN", "secret")

	if got := billingctl(t, "", "refunds", "list"); got.code != exitOK || !strings.Contains(got.out, "$50.00") || !strings.Contains(got.out, "a second success") {
		t.Errorf("list: %+v", got)
	}
	for line, want := range map[string]request{
		"refunds carry-out ch_2": {"/v1/commands/refund-charge", "", "Bearer secret",
			`{"amount_minor":5000,"billing_period":"2026-11","charge_id":"ch_2","customer_id":"acme","refund_id":"surplus-ch_2"}`},
		"refunds accept acme 2026-11 r1 --reason agreed": {"/v1/commands/accept-refund", "accept-r1", "Bearer secret",
			`{"billing_period":"2026-11","customer_id":"acme","reason":"agreed","refund_id":"r1"}`},
		"refunds dismiss ch_2 --reason settled": {"/v1/commands/dismiss-refund-proposal", "surplus-ch_2", "Bearer secret",
			`{"billing_period":"2026-11","charge_id":"ch_2","customer_id":"acme","reason":"settled"}`},
	} {
		sent = nil
		if got := billingctl(t, "", strings.Fields(line)...); got.code != exitOK || len(sent) != 1 || sent[0] != want {
			t.Errorf("%s sent %+v, want %+v; %+v", line, sent, want, got)
		}
	}
	if got := billingctl(t, "", "refunds", "carry-out", "ch_9"); got.code != exitFailed || !strings.Contains(got.err, "no refund of ch_9 was proposed") {
		t.Errorf("one that was not proposed: %+v", got)
	}
	if got := billingctl(t, "", "refunds", "dismiss", "ch_2"); got.code != exitUsage {
		t.Errorf("without a reason: %+v", got)
	}
}
