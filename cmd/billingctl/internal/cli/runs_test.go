package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A run that is paused says so, by whom and why; pause and resume are commands
// with a key, each a decision of its own unless one is given.
func TestRuns(t *testing.T) {
	var sent []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, _ := io.ReadAll(r.Body)
			sent = append(sent, fmt.Sprint(r.URL.Path, " ", r.Header.Get("Idempotency-Key"), " ", string(body)))
			fmt.Fprint(w, `{"key":"pause-run/2026-11/k","command":"pause-run","stream":"run/2026-11","version":1,"position":"7-12","replayed":false,"events":[{"type":"run.paused.v1","version":1,"position":"7-12"}]}`)
			return
		}
		fmt.Fprint(w, `{"billing_period":"2026-11","bills":100,"paid":60,"open":40,"closed":0,"progress":{"expected":120,"ended":60,"remaining":40,"bills_per_second":12.5,"seconds_left":95},"statuses":[{"status":"held","bills":40},{"status":"paid","bills":60}],"totals":[],
			"control":{"paused":true,"reason":"the spend cap is reached: $10.00 asked, $0.00 left of $600.00","paused_by":"collector","paused_at":"2026-11-01T00:00:03Z","vault_key":"9f2c","vault_key_expires_at":"2026-12-15T14:00:00Z"},
			"manifest":[{"currency":"usd","bills":100,"expected":{"minor":100000,"currency":"usd","display":"$1,000.00"},"fixed":100,"registered":100,"refused":0}],"as_of":{"position":"7-12"}}`)
	}))
	t.Cleanup(s.Close)
	t.Setenv("BILLINGCTL_URL", s.URL)
	t.Setenv("BILLINGCTL_TOKEN", "secret")

	got := billingctl(t, "", "runs", "show", "2026-11")
	for _, part := range []string{
		"100 bills, 60 paid, 40 open", "50 % of 120 expected bills have ended; 12.5 bills/s; 1m35s left", "paused since 2026-11-01 00:00:03 by collector: the spend cap is reached: $10.00 asked, $0.00 left of $600.00",
		"vault key 9f2c, good until 2026-12-15 14:00:00", "$1,000.00",
	} {
		if got.code != 0 || !strings.Contains(got.out, part) {
			t.Errorf("runs show lacks %q: %+v", part, got)
		}
	}
	if got := billingctl(t, "", "runs", "pause", "2026-11", "--reason", "to be checked", "--idempotency-key", "k"); got.code != 0 || !strings.Contains(got.out, "run.paused.v1") {
		t.Errorf("runs pause: %+v", got)
	}
	for range 2 {
		if got := billingctl(t, "", "runs", "resume", "2026-11"); got.code != 0 {
			t.Errorf("runs resume: %+v", got)
		}
	}
	if got := billingctl(t, "", "runs", "pause", "2026-11"); got.code == 0 || !strings.Contains(got.err, "--reason") {
		t.Errorf("a pause without a reason: %+v", got)
	}
	if len(sent) != 3 || sent[0] != `/v1/commands/pause-run k {"billing_period":"2026-11","reason":"to be checked"}` ||
		!strings.HasPrefix(sent[1], "/v1/commands/resume-run ") || !strings.HasSuffix(sent[1], ` {"billing_period":"2026-11"}`) || sent[1] == sent[2] {
		t.Errorf("sent was %q", sent)
	}
}

// Following a run ends when nothing is left to be collected, also if the service
// restarts meanwhile.
func TestFollowARun(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 2 {
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"billing_period":"2026-11","bills":100,"progress":{"expected":100,"ended":%d,"remaining":%d},"control":{},"as_of":{"position":"7-12"}}`, 25*min(asked, 4), 100-25*min(asked, 4))
	}))
	t.Cleanup(s.Close)
	t.Setenv("BILLINGCTL_URL", s.URL)
	t.Setenv("BILLINGCTL_TOKEN", "secret")
	if got := billingctl(t, "", "runs", "show", "2026-11", "--follow"); got.code != 0 || !strings.Contains(got.out, "100 % of 100 expected bills") || asked != 5 {
		t.Errorf("asked %d times: %+v", asked, got)
	}
}
