package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/projections/projectiontest"
	"github.com/billonce/billonce/sagas"
)

// due records that customers owe a month.
func due(t *testing.T, log *projectiontest.Log, month string, ids ...domain.CustomerID) {
	t.Helper()
	period, err := domain.ParsePeriod(month)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		log.Given(id, domain.MonthlyBillingDue{CustomerID: id, BillingPeriod: period, Money: domain.Money{Minor: 4900, Currency: "usd"}})
	}
}

var planLine = regexp.MustCompile(`(?m)^saga plan: processor=billing from=1 to=(\d+) commands=(\d+) existing=(\d+) new=(\d+) digest=([0-9a-f]{64})$`)

// A plan is read, signed off by its digest, and on record; one that is not what
// the log says any more is refused, and shown as it is now.
func TestSagaPlan(t *testing.T) {
	log := projectiontest.New(t)
	t.Setenv("DATABASE_URL", pgtest.DSN(t))
	ids := []domain.CustomerID{"cust_0", "cust_1", "cust_2"}
	for _, id := range ids {
		log.Given(id, domain.CustomerRegistered{CustomerID: id, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"})
	}
	if ran := billingctl(t, "", "saga", "plans"); ran.code != exitOK || ran.out != "no plan was applied\n" {
		t.Errorf("%+v", ran)
	}
	billing := sagas.Billing.Processor(commands.NewDispatcher(log.Store))
	due(t, log, "2026-12", ids...)
	deliver(t, log, billing)

	plan := func(want string, args ...string) (digest string) {
		t.Helper()
		ran := billingctl(t, "", append([]string{"saga", "plan", "billing"}, args...)...)
		found := planLine.FindStringSubmatch(ran.out)
		if ran.code != exitOK || found == nil || strings.Join(found[2:5], " ") != want {
			t.Fatalf("saga plan billing %q: %+v, want %s", args, ran, want)
		}
		if n := strings.Count(ran.out, "charge-billing"); fmt.Sprint(n) != found[2] {
			t.Errorf("%d lines of %s", n, found[2])
		}
		if n := strings.Count(ran.out, "  NEW\n"); fmt.Sprint(n) != found[4] {
			t.Errorf("%d new lines of %s", n, found[4])
		}
		return found[5]
	}
	old := plan("3 3 0")
	if again := plan("3 3 0", "--from", "beginning"); again != old {
		t.Errorf("digest %s, then %s", old, again)
	}

	// Recorded since, and not handled yet.
	log.Given("cust_3", domain.CustomerRegistered{CustomerID: "cust_3", StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"})
	due(t, log, "2026-12", "cust_3")
	tokens := func() (sum int64) {
		if err := log.Pool.QueryRow(t.Context(), `SELECT sum(position)::bigint FROM processor_tokens WHERE processor = 'billing'`).Scan(&sum); err != nil {
			t.Fatal(err)
		}
		return sum
	}
	before := tokens()
	refused := billingctl(t, "", "saga", "plan", "billing", "--apply", "--digest", old, "--to", "9", "--reason", "a key was lost")
	if refused.code != exitFailed || !planLine.MatchString(refused.out) || strings.Count(refused.out, "  NEW, since then\n") != 1 || strings.Count(refused.out, "since then") != 1 || !strings.Contains(refused.err, "nothing was changed") || tokens() != before {
		t.Errorf("an old digest: %+v, tokens %d and %d", refused, before, tokens())
	}
	digest := plan("4 3 1", "--apply", "--reason", "a key was lost", "--digest", planLine.FindStringSubmatch(refused.out)[5])
	if tokens() != 0 {
		t.Errorf("tokens %d", tokens())
	}
	if ran := billingctl(t, "", "saga", "plans"); ran.code != exitOK || !strings.Contains(ran.out, digest[:12]) || !strings.Contains(ran.out, "a key was lost") {
		t.Errorf("%+v", ran)
	}
	deliver(t, log, billing)
	plan("4 4 0")

	var document struct {
		Steps []sagas.PlanStep `json:"steps"`
		sagas.Plan
	}
	if ran := billingctl(t, "", "saga", "plan", "billing", "-o", "json"); json.Unmarshal([]byte(ran.out), &document) != nil || len(document.Steps) != 4 || document.Existing != 4 || document.Steps[0].At.Position == 0 {
		t.Errorf("%+v", ran)
	}
	if ran := billingctl(t, "", "saga", "plan", "preflight", "-o", "json"); json.Unmarshal([]byte(ran.out), &document) != nil || len(document.Steps) != 4 || document.New != 4 {
		t.Errorf("%+v", ran)
	}
	if ran := billingctl(t, "", "saga", "plan", "refund-preflight", "-o", "json"); json.Unmarshal([]byte(ran.out), &document) != nil || document.Commands != 0 {
		t.Errorf("%+v", ran)
	}
	if ran := billingctl(t, "", "saga", "plan", "bills"); ran.code != exitUsage || !strings.Contains(ran.err, "no effectful processor has this name") {
		t.Errorf("%+v", ran)
	}
	ran := billingctl(t, "", "saga", "plan", "preflight", "--apply", "--reason", "x", "--digest", digest)
	if ran.code != exitFailed || !strings.Contains(ran.err, "unknown_processor") && !strings.Contains(ran.err, "no such processor") {
		t.Errorf("a processor that never ran: %+v", ran)
	}
}
