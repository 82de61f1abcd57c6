package verify_test

import (
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
)

// TestClosings: the report of a closing is made again years later, whatever has
// happened to the run's bills since; a log that is not what it was is found.
func TestClosings(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.paid("paid_0")
	h.paid("paid_1")
	h.deliver()
	standing, err := projections.NewReads(h.Store).RunStanding(t.Context(), november, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	evidence := commands.ClosingEvidence{ReconciliationID: 1, Compared: true, AtStripe: map[domain.Currency]int64{"usd": 10_000}}
	h.dispatch(commands.Of(commands.NewCloseRun(standing.Report, evidence, time.Date(2026, 12, 9, 8, 0, 0, 0, time.UTC))))
	h.dispatch(commands.Of(commands.NewRefundCharge("paid_0", november, "r-2", 100, "")), commands.Of(commands.NewChargeBilling("paid_1", december, fifty)))
	h.paid("paid_2")
	h.deliver()
	if report, found := h.verified(); len(found) != 0 {
		t.Fatalf("%+v finds %q", report, found)
	}
	// An event that was altered together with its digest: only its own chain would tell.
	h.exec(`UPDATE events SET payload = replace(payload::text, 'pm_1', 'pm_9')::json, digest = sha256('forged') WHERE stream_id = 'customer/paid_1' AND stream_version = 1`)
	_, found := h.verified()
	told := strings.Join(found, "\n")
	if !strings.Contains(told, "closing: closing of run 2026-11 at ") || !strings.Contains(told, ": its report's digest was "+standing.Report.Digest()+", and the log now gives ") || !strings.Contains(told, "its bills are the same, its facts are not") {
		t.Errorf("it finds\n%s", told)
	}
	h.exec(`DELETE FROM events WHERE stream_id = 'customer/paid_1'`)
	if _, found := h.verified(); !strings.Contains(strings.Join(found, "\n"), "its bills are others") {
		t.Errorf("with a stream deleted it finds %q", found)
	}
}
