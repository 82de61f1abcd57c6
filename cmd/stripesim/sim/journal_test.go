package sim_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// After a restart the account is what it was: objects as the API shows them, the
// ledger, keys with their answers, the clock, what is still to happen.
func TestRestart(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "deep", "stripesim.journal")
	s, c := start(t, sim.Options{Data: data, Account: "acct_1Restart"})
	s.Advance(48 * time.Hour)

	paid := create(t, c, "create-paid")
	for n, method := range []string{"pm_card_chargeCustomerFail", "pm_card_visa"} {
		c.PaymentIntents.Confirm(paid.ID, confirmParams(keyN(n), method)) //nolint:errcheck // the first declines
	}
	slow := create(t, c, "create-slow")
	if _, err := c.PaymentIntents.Confirm(slow.ID, confirmParams("slow", "pm_sim_processing_2h_succeeds")); err != nil {
		t.Fatal(err)
	}
	forward := create(t, c, "create-forward")
	arm(t, s, sim.Fault{Kind: sim.Error500RolledForward, Match: sim.Match{Key: "forward"}, Delay: 3 * time.Hour})
	_, err := c.PaymentIntents.Confirm(forward.ID, confirmParams("forward", "pm_card_visa"))
	stripeError(t, err, 500, "")
	arm(t, s, sim.Fault{Kind: sim.Error500RolledForward, Match: sim.Match{Key: "forward-legacy"}, Delay: 3 * time.Hour})
	equal(t, "legacy charge to roll forward", post(t, s, "/v1/charges", "forward-legacy", chargeForm).status, 500)
	customer, err := c.Customers.New(&stripe.CustomerParams{Name: stripe.String("Ann"), PaymentMethod: stripe.String("pm_card_visa")})
	if err != nil {
		t.Fatal(err)
	}
	refund, err := c.Refunds.New(&stripe.RefundParams{PaymentIntent: stripe.String(paid.ID), Amount: stripe.Int64(1000)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetCustomer("cus_bad", sim.CustomerState{Card: "lost_card"}); err != nil {
		t.Fatal(err)
	}
	const odd = "amount=5000&currency=usd&customer=cus_A&description=tab%09line%0Aquote%22%E2%82%AC"
	first := post(t, s, "/v1/charges", "odd", odd)
	post(t, s, "/v1/charges", "forgotten", chargeForm)
	s.ForgetKeys("forgotten")

	paths := []string{
		"/v1/payment_intents/" + paid.ID + "?expand[]=latest_charge", "/v1/payment_intents/" + slow.ID, "/v1/customers/" + customer.ID,
		"/v1/refunds/" + refund.ID, "/v1/charges?limit=100", "/v1/payment_intents?limit=100", "/v1/account",
	}
	var before []string
	for _, path := range paths {
		before = append(before, get(t, s, path).body)
	}
	ledger, offset := s.Ledger(), s.Offset()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s, c = start(t, sim.Options{Data: data})
	equal(t, "offset", s.Offset(), offset)
	for i, path := range paths {
		equal(t, path, get(t, s, path).body, before[i])
	}
	if got := s.Ledger(); !reflect.DeepEqual(got, ledger) {
		t.Errorf("ledger:\n%v\nwant\n%v", got, ledger)
	}
	again := post(t, s, "/v1/charges", "odd", odd)
	equal(t, "body under a key", again.body, first.body)
	equal(t, "replayed", again.header.Get("Idempotent-Replayed"), "true")
	equal(t, "mismatch after the restart", post(t, s, "/v1/charges", "odd", chargeForm).status, 400)
	equal(t, "forgotten key", post(t, s, "/v1/charges", "forgotten", chargeForm).header.Get("Idempotent-Replayed"), "")
	equal(t, "override", s.Customer("cus_bad").Card, "lost_card")

	s.Advance(4 * time.Hour)
	for _, id := range []string{slow.ID, forward.ID} {
		pi, err := c.PaymentIntents.Get(id, nil)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "status of what was to happen", pi.Status, stripe.PaymentIntentStatusSucceeded)
	}
	equal(t, "rolled forward", len(s.LedgerWhere(sim.LedgerFilter{Key: "forward-legacy"})), 1)
	n := len(s.Ledger())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = start(t, sim.Options{Data: data})
	s.Advance(100 * time.Hour)
	equal(t, "movements after a second restart", len(s.Ledger()), n)
}

// Whatever was answered is with the operating system before the answer leaves:
// a copy of the file made at that moment brings it back.
func TestAnsweredMeansWritten(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "journal")
	s, c := start(t, sim.Options{Data: data})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 15 {
				ch, err := c.Charges.New(chargeParams(fmt.Sprintf("%d-%d", w, i)))
				if err != nil {
					t.Error(err)
					return
				}
				content, err := os.ReadFile(data)
				if err != nil || !bytes.Contains(content, []byte(ch.ID)) {
					t.Errorf("%s was answered and is not in the file (%v)", ch.ID, err)
				}
			}
		})
	}
	wg.Wait()
	equal(t, "movements", len(s.Ledger()), 120)
}

// A line that kill -9 tore is cut off, wherever it was torn; everything before
// it is there, and the file goes on.
func TestTornLine(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "journal")
	s, c := start(t, sim.Options{Data: data})
	for n := range 3 {
		if _, err := c.Charges.New(chargeParams(keyN(n))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for _, cut := range []int{last, last + 1, last + 8, last + 9, (last + len(whole)) / 2, len(whole) - 1} {
		torn := filepath.Join(t.TempDir(), "torn")
		if err := os.WriteFile(torn, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		for restart := range 2 {
			s, c := start(t, sim.Options{Data: torn})
			equal(t, fmt.Sprintf("movements, cut at %d, start %d", cut, restart), len(s.Ledger()), 2+restart)
			if restart == 0 {
				if _, err := c.Charges.New(chargeParams(keyN(2))); err != nil {
					t.Error(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Damage that no kill can have done is not passed over.
func TestDamagedJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, c := start(t, sim.Options{Data: dir}) // a directory gets a file in it
	if _, err := c.Charges.New(chargeParams("k")); err != nil {
		t.Fatal(err)
	}
	if _, err := sim.New(sim.Options{Data: dir}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second stand-in on the same journal: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "stripesim.journal")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"a changed amount": bytes.Replace(whole, []byte("5000"), []byte("4000"), 1),
		"another file":     []byte("hello\nworld\n"),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := sim.New(sim.Options{Data: path}); err == nil {
			s.Close()
			t.Errorf("%s: opened", name)
		}
	}
	if s, err := sim.New(sim.Options{Data: "/dev/zero"}); err == nil {
		s.Close()
		t.Error("a device was opened as a journal")
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := sim.New(sim.Options{Data: path, Account: "acct_other"}); err == nil {
		s.Close()
		t.Error("a journal of another account was opened")
	}
}

func TestResetEmptiesTheJournal(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "journal")
	s, c := start(t, sim.Options{Data: data})
	s.Advance(time.Hour)
	if _, err := c.Charges.New(chargeParams("k")); err != nil {
		t.Fatal(err)
	}
	if err := s.Reset(); err != nil {
		t.Fatal(err)
	}
	equal(t, "movements", len(s.Ledger()), 0)
	equal(t, "offset", s.Offset(), 0)
	if _, err := c.Charges.New(chargeParams("k")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = start(t, sim.Options{Data: data})
	equal(t, "movements after a restart", len(s.Ledger()), 1)
}
