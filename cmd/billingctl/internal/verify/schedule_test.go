package verify_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// Whatever becomes of a subscription, its row in the schedule and its read model
// are what the log makes of it: at once, and after a scanner has moved on.
func TestSchedulesOfEveryKind(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	at := func(day int) time.Time { return time.Date(2026, 11, day, 12, 0, 0, 0, time.UTC) }
	for _, id := range []domain.CustomerID{"as-it-was", "moved", "dearer", "paused", "resumed", "ended", "gone", "again"} {
		h.subscribed(id)
	}
	h.deliver()
	pause := func(id domain.CustomerID) commands.Request {
		return commands.Of(commands.NewPauseSubscription(id, "", at(10), "k1"))
	}
	cancel := func(id domain.CustomerID, mode domain.CancelMode) commands.Request {
		return commands.Of(commands.NewCancelSubscription(id, mode, "", at(20), "k2"))
	}
	h.dispatch(
		commands.Of(commands.NewChangeSubscriptionSchedule("moved", 31, "Pacific/Kiritimati", domain.Period{}, at(9), "k1")),
		commands.Of(commands.NewChangeSubscriptionAmount("dearer", 7000, "", domain.Period{}, at(9), "k1")),
		pause("paused"), pause("resumed"), commands.Of(commands.NewResumeSubscription("resumed", at(45), "k2")), // over December
		cancel("ended", domain.CancelPeriodEnd), cancel("gone", domain.CancelNow), cancel("again", domain.CancelPeriodEnd),
		commands.Of(commands.NewActivateSubscription("again", fifty, domain.Schedule{Cadence: domain.Quarterly, AnchorDay: 5, TimeZone: "UTC", StartsOn: domain.Date{Year: 2026, Month: 11, Day: 25}})),
	)
	h.deliver()
	same := func(when string) {
		t.Helper()
		if report, found := h.verified(); len(found) > 0 {
			t.Errorf("%s: %+v\n%s", when, report, strings.Join(found, "\n"))
		}
	}
	same("before anything else is due")
	clock := sagas.NewClock(func(context.Context) (time.Time, error) { return time.Date(2027, 2, 20, 0, 0, 0, 0, time.UTC), nil }, time.Hour)
	scanner := sagas.NewDueScanner(h.d, clock, time.Second, slog.New(slog.DiscardHandler))
	declared, err := scanner.Start(t.Context(), domain.PeriodOf(domain.Monthly, 2027, 1))
	if err != nil || declared != 4 { // as-it-was, moved, dearer, resumed
		t.Errorf("%d dues of January, %v", declared, err)
	}
	h.deliver()
	same("in February")
}
