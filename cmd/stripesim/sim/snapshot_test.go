package sim_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// snapshotOf takes a snapshot by control, and restore takes one back.
func snapshotOf(t testing.TB, s *sim.Server) string {
	t.Helper()
	resp, err := http.Get(s.ControlURL + "/control/snapshot")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("snapshot: %d, %v", resp.StatusCode, err)
	}
	return string(body)
}

// A restore takes back money, keys and time, or keeps what a test does not
// restore; it is as durable as everything else.
func TestSnapshotAndRestore(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"", filepath.Join(t.TempDir(), "journal")} {
		t.Run(fmt.Sprintf("durable=%v", data != ""), func(t *testing.T) {
			t.Parallel()
			o := sim.Options{Data: data, Account: "acct_1Snapshot"}
			s, c := start(t, o)
			s.Advance(time.Hour)
			pi := create(t, c, "create")
			for n, method := range []string{"pm_card_chargeCustomerFail", "pm_card_visa"} {
				c.PaymentIntents.Confirm(pi.ID, confirmParams(keyN(n), method)) //nolint:errcheck // the first declines
			}
			slow := create(t, c, "create-slow")
			if _, err := c.PaymentIntents.Confirm(slow.ID, confirmParams("slow", "pm_sim_processing_2h_succeeds")); err != nil {
				t.Fatal(err)
			}
			open := create(t, c, "create-open")
			arm(t, s, sim.Fault{Kind: sim.Error500RolledForward, Match: sim.Match{Key: "forward"}, Delay: 3 * time.Hour})
			equal(t, "to be rolled forward", post(t, s, "/v1/charges", "forward", chargeForm).status, 500)
			customer, err := c.Customers.New(&stripe.CustomerParams{PaymentMethod: stripe.String("pm_card_visa")})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Refunds.New(&stripe.RefundParams{PaymentIntent: stripe.String(pi.ID), Amount: stripe.Int64(700)}); err != nil {
				t.Fatal(err)
			}
			if err := s.SetCustomer("cus_bad", sim.CustomerState{Card: "lost_card"}); err != nil {
				t.Fatal(err)
			}
			paths := []string{
				"/v1/payment_intents?limit=100", "/v1/charges?limit=100", "/v1/refunds", "/v1/events?limit=100", "/v1/customers/" + customer.ID, "/v1/account",
			}
			var before []string
			for _, path := range paths {
				before = append(before, get(t, s, path).body)
			}
			ledger, offset := s.Ledger(), s.Offset()
			snapshot := snapshotOf(t, s)

			s.Advance(30 * time.Minute)
			if _, err := c.PaymentIntents.Confirm(open.ID, confirmParams("later", "pm_card_visa")); err != nil {
				t.Fatal(err)
			}
			equal(t, "restore", control(t, s, "POST", "/control/restore", snapshot, nil), 200)
			same := func(s *sim.Server) {
				t.Helper()
				for i, path := range paths {
					equal(t, path, get(t, s, path).body, before[i])
				}
				if got := s.Ledger(); !reflect.DeepEqual(got, ledger) {
					t.Errorf("ledger:\n%v\nwant\n%v", got, ledger)
				}
				equal(t, "offset", s.Offset().Round(time.Second), offset.Round(time.Second))
				equal(t, "override", s.Customer("cus_bad").Card, "lost_card")
			}
			same(s)
			replay := post(t, s, "/v1/charges", "forward", chargeForm)
			equal(t, "a key of before", replay.header.Get("Idempotent-Replayed"), "true")
			if data != "" {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s, c = start(t, o)
				same(s)
			}
			if _, err := c.PaymentIntents.Confirm(open.ID, confirmParams("later", "pm_card_visa")); err != nil {
				t.Fatal(err)
			}
			equal(t, "a key of after the snapshot is new", s.LedgerWhere(sim.LedgerFilter{Key: "later"})[0].Status, "succeeded")
			s.Advance(4 * time.Hour)
			equal(t, "rolled forward", len(s.LedgerWhere(sim.LedgerFilter{Key: "forward"})), 1)
			equal(t, "processed", s.LedgerWhere(sim.LedgerFilter{Intent: slow.ID})[0].Status, "succeeded")

			equal(t, "restore but for the clock", control(t, s, "POST", "/control/restore?clock=keep", snapshot, nil), 200)
			if ahead := s.Offset() - offset; ahead < 4*time.Hour {
				t.Errorf("the clock went back to %v after the snapshot", ahead)
			}
			equal(t, "fallen due by now", s.LedgerWhere(sim.LedgerFilter{Intent: slow.ID})[0].Status, "succeeded")
		})
	}
}

// A snapshot that is damaged, or somebody else's, changes nothing.
func TestBadSnapshots(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	post(t, s, "/v1/charges", "k", chargeForm)
	snapshot := snapshotOf(t, s)
	other, _ := start(t, sim.Options{Account: "acct_1Other"})
	for what, bad := range map[string]string{
		"empty": "", "torn": snapshot[:len(snapshot)-9], "damaged": strings.Replace(snapshot, "usd", "eur", 1), "of another account": snapshotOf(t, other),
	} {
		equal(t, what, control(t, s, "POST", "/control/restore", bad, nil), 400)
	}
	equal(t, "odd clock", control(t, s, "POST", "/control/restore?clock=back", snapshot, nil), 400)
	equal(t, "movements", len(s.Ledger()), 1)
}

// A snapshot is a journal: another stand-in starts from it.
func TestStartFromASnapshot(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	first := post(t, s, "/v1/charges", "k", chargeForm)
	data := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(data, []byte(snapshotOf(t, s)), 0o600); err != nil {
		t.Fatal(err)
	}
	again, _ := start(t, sim.Options{Data: data})
	equal(t, "replayed", post(t, again, "/v1/charges", "k", chargeForm).body, first.body)
}
