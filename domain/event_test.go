package domain_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/billonce/billonce/domain"
)

// A fact that is not in the catalogue could be written and never be read.
func TestEveryFactIsInTheCatalogue(t *testing.T) {
	t.Parallel()
	var listed []string
	for e := range domain.Events() {
		listed = append(listed, reflect.TypeOf(e).Name())
	}
	declared := factsInSource(t)
	if len(declared) < 20 {
		t.Fatalf("only %d facts were found in the source", len(declared))
	}
	for _, name := range declared {
		if !slices.Contains(listed, name) {
			t.Errorf("%s is a fact and is missing from Events()", name)
		}
	}
	for _, name := range listed {
		if !slices.Contains(declared, name) {
			t.Errorf("%s is in Events() and is no fact of the source", name)
		}
	}
}

// factsInSource lists the structs of the package that embed fact.
func factsInSource(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), entry.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if body, ok := spec.Type.(*ast.StructType); ok && embedsFact(body) {
				names = append(names, spec.Name.Name)
			}
			return true
		})
	}
	return names
}

func embedsFact(s *ast.StructType) bool {
	return slices.ContainsFunc(s.Fields.List, func(f *ast.Field) bool {
		name, ok := f.Type.(*ast.Ident)
		return ok && len(f.Names) == 0 && name.Name == "fact"
	})
}

// The contract names, written down. Renaming one would orphan every event that
// was stored under it.
func TestContractNames(t *testing.T) {
	t.Parallel()
	want := []string{
		"customer.registered.v1", "customer.payment_method_changed.v1",
		"subscription.activated.v1", "subscription.amount_changed.v1", "subscription.schedule_changed.v1", "subscription.paused.v1", "subscription.resumed.v1", "subscription.cancelled.v1",
		"billing.due.v1",
		"charge.requested.v1", "charge.attempt_started.v1", "charge.intent_committed.v1",
		"customer.billed.v1", "charge.declined.v1", "charge.action_required.v1", "charge.rejected.v1", "charge.held.v1", "charge.not_sent.v1", "charge.unknown.v1",
		"charge.needs_review.v1", "charge.outcome_surprise.v1",
		"charge.waiting.v1", "charge.released.v1", "charge.voided.v1",
		"bill.closing.v1", "bill.settled.v1", "bill.written_off.v1",
		"refund.requested.v1", "refund.recorded.v1", "refund.proposed.v1", "refund.proposal_dismissed.v1", "charge.disputed.v1",
		"run.paused.v1", "run.resumed.v1",
	}
	var got []string
	for e := range domain.Events() {
		got = append(got, e.EventName())
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("no fact is named %s any more", name)
		}
	}
	shape := regexp.MustCompile(`^[a-z]+\.[a-z_]+\.v[1-9]$`)
	seen := map[string]bool{}
	for _, name := range got {
		if seen[name] {
			t.Errorf("two facts are named %s", name)
		}
		seen[name] = true
		if !shape.MatchString(name) {
			t.Errorf("%s is not of the form noun.verb.v1", name)
		}
	}
}

// Every fact says whose it is, or which run's, so that it can be told from the
// payload alone, and spells its fields in snake case.
func TestPayloadFields(t *testing.T) {
	t.Parallel()
	for e := range domain.Events() {
		fields := payloadFields(reflect.TypeOf(e))
		if run := strings.HasPrefix(e.EventName(), "run."); run == slices.Contains(fields, "customer_id") || run && !slices.Contains(fields, "billing_period") {
			t.Errorf("%s does not say whose it is", e.EventName())
		}
		seen := map[string]bool{}
		for _, f := range fields {
			if !regexp.MustCompile(`^[a-z][a-z0-9_]*$`).MatchString(f) {
				t.Errorf("%s: field %q", e.EventName(), f)
			}
			if seen[f] {
				t.Errorf("%s has field %s twice", e.EventName(), f)
			}
			seen[f] = true
			for _, secret := range []string{"email", "name", "card", "secret", "token", "phone", "address"} {
				if f == secret {
					t.Errorf("%s: %s has no place in an event", e.EventName(), f)
				}
			}
		}
	}
}

func payloadFields(typ reflect.Type) (names []string) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous {
			names = append(names, payloadFields(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

func TestFoldIsEvolveInOrder(t *testing.T) {
	t.Parallel()
	history := []domain.Event{registered, activated, due("2026-11"), asked("2026-11", 1)}
	want := domain.Customer{}
	for _, e := range history {
		want = want.Evolve(e)
	}
	if got := domain.Fold[domain.Customer](slices.Values(history)); !reflect.DeepEqual(got, want) {
		t.Errorf("folded to %+v, want %+v", got, want)
	}
}

func TestRefusalsAreToldApartByCode(t *testing.T) {
	t.Parallel()
	worded := domain.ErrPeriodOverlaps.With("%s overlaps %s", "2026-11", "2026-Q4")
	if !errors.Is(worded, domain.ErrPeriodOverlaps) || errors.Is(worded, domain.ErrBillClosed) {
		t.Error("a refusal in other words is another refusal")
	}
	if worded.Error() != "period_overlaps: 2026-11 overlaps 2026-Q4" {
		t.Errorf("it reads %q", worded)
	}
	if !strings.Contains(domain.InvalidField("currency", "must be lower case").Error(), "currency: must be lower case") {
		t.Error("an invalid field is not named in the error's text")
	}
	if domain.ErrPeriodOverlaps.Msg == worded.Msg {
		t.Error("With changed the refusal it was made from")
	}
	for kind, name := range map[domain.Kind]string{domain.Invalid: "invalid", domain.NotFound: "not_found", domain.Conflict: "conflict", domain.Refused: "refused", 0: "internal"} {
		if kind.String() != name {
			t.Errorf("kind %d is called %s, want %s", kind, kind, name)
		}
	}
}

func TestDeclineClasses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code, declineCode string
		want              domain.DeclineClass
	}{
		{"card_declined", "insufficient_funds", domain.Soft},
		{"card_declined", "generic_decline", domain.Soft},
		{"card_declined", "do_not_honor", domain.Soft},
		{"card_declined", "", domain.Soft},
		{"card_declined", "a_code_of_tomorrow", domain.Soft},
		{"a_code_of_tomorrow", "", domain.Soft},
		{"", "", domain.Soft},
		{"card_declined", "lost_card", domain.Hard},
		{"card_declined", "stolen_card", domain.Hard},
		{"card_declined", "fraudulent", domain.Hard},
		{"expired_card", "", domain.Hard},
		{"card_declined", "authentication_required", domain.Authentication},
		{"authentication_required", "", domain.Authentication},
		{"card_declined", "card_decline_rate_limit_exceeded", domain.RateLimited},
		{"resource_missing", "", domain.MethodMissing},
		{"payment_method_not_available", "", domain.MethodMissing},
		// The decline code is the more exact one.
		{"expired_card", "insufficient_funds", domain.Soft},
	} {
		if got := domain.ClassifyDecline(c.code, c.declineCode); got != c.want {
			t.Errorf("%q %q is %s, want %s", c.code, c.declineCode, got, c.want)
		}
	}
}
