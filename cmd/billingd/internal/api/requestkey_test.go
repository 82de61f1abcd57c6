package api

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/billonce/billonce/domain"
)

// C097: one header key, several bodies.
func TestIdempotencyKeyHeader(t *testing.T) {
	t.Parallel()
	alice := `{"customer_id":"alice","stripe_customer_id":"cus_alice","payment_method_id":"pm_card"}`
	tokens := "one:read+dispatch:" + hashOf("token-one") + ",two:dispatch:" + hashOf("token-two")
	i := start(t, tokensOf(t, tokens))
	one, two := []string{"Authorization", "Bearer token-one"}, []string{"Authorization", "Bearer token-two"}
	with := func(who []string, key string) []string { return append([]string{"Idempotency-Key", key}, who...) }

	first := i.send("register-customer", alice, with(one, "X")...).receipt(t)
	if again := i.send("register-customer", " "+strings.ReplaceAll(alice, ",", ", ")+"\n", with(one, "X")...).receipt(t); !again.Replayed || again.Position != first.Position {
		t.Errorf("the same under X got %+v", again)
	}
	escaped := strings.ReplaceAll(alice, `"alice"`, `"\u0061lice"`)
	if again := i.send("register-customer", escaped, with(one, "X")...).receipt(t); !again.Replayed || again.Position != first.Position {
		t.Errorf("the same in other escapes under X got %+v", again)
	}
	before := i.events()
	for name, a := range map[string]answer{
		"another body":    i.send("register-customer", strings.ReplaceAll(alice, "alice", "bob"), with(one, "X")...),
		"another command": i.send("charge-billing", chargeBody("alice", "2026-01", 5000), with(one, "X")...),
		"another field":   i.send("register-customer", strings.ReplaceAll(alice, "pm_card", "pm_other"), with(one, "X")...),
	} {
		if p := a.problem(t); a.status != 409 || p.Code != "key_reused" {
			t.Errorf("%s got %d %s", name, a.status, a.body)
		}
	}
	if n := i.events(); n != before {
		t.Errorf("%d facts came of it", n-before)
	}
	i.send("register-customer", strings.ReplaceAll(alice, "alice", "bob"), with(two, "X")...).receipt(t) // another caller's X

	// A header that came with a command decided before is remembered, too.
	if r := i.send("register-customer", alice, with(one, "Y")...).receipt(t); !r.Replayed {
		t.Errorf("under Y got %+v", r)
	}
	if a := i.send("register-customer", strings.ReplaceAll(alice, "alice", "carol"), with(one, "Y")...); a.status != 409 {
		t.Errorf("another body under Y got %d", a.status)
	}
	if a := i.send("register-customer", strings.ReplaceAll(alice, "alice", "carol"), with(one, "Z")...); a.status != 200 {
		t.Errorf("a new key got %d", a.status)
	}

	for _, key := range []string{"", " ", strings.Repeat("k", 256), "schlüssel"} {
		if p := i.send("register-customer", alice, with(one, key)...).problem(t); p.Status != 400 || !p.names("Idempotency-Key") {
			t.Errorf("the key %q got %d %v", key, p.Status, p.Errors)
		}
	}
	if p := i.send("register-customer", alice, append(with(one, "A"), "Idempotency-Key", "B")...).problem(t); p.Status != 400 || !p.names("Idempotency-Key") {
		t.Errorf("two keys got %d", p.Status)
	}
}

func TestConcurrentUsesOfOneHeaderKey(t *testing.T) {
	t.Parallel()
	i := start(t)
	answers := make([]answer, 24)
	var sending sync.WaitGroup
	for n := range answers {
		sending.Go(func() {
			customer := fmt.Sprintf("c%d", n%3)
			answers[n] = i.send("register-customer", fmt.Sprintf(`{"customer_id":%q,"stripe_customer_id":"cus_1","payment_method_id":"pm_1"}`, customer), "Idempotency-Key", "X")
		})
	}
	sending.Wait()
	winners := map[domain.StreamID]int{}
	for _, a := range answers {
		if a.status == 200 {
			winners[a.receipt(t).Stream]++
		} else if p := a.problem(t); p.Code != "key_reused" {
			t.Errorf("got %s", a.body)
		}
	}
	if len(winners) != 1 || i.events() != 1 {
		t.Errorf("X was used for %v; there are %d facts", winners, i.events())
	}
}
