package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
	"github.com/billonce/billonce/domain"
)

// Who makes trouble: their cards are declined, or come when the cap is reached.
const (
	trustful = "demo_short"  // has no money today
	thief    = "demo_stolen" // pays by a stolen card
	late     = "demo_late"   // joins when the run may take no more
)

// trouble lets three more customers join the month: one meets the cap, one is
// declined and pays when it is tried again, one is declined for good and written
// off. Then the run is closed, and its report held against the other two books.
func (d *demo) trouble(ctx context.Context) (findings []string, err error) {
	find := func(format string, args ...any) { findings = append(findings, fmt.Sprintf(format, args...)) }
	d.say("\nThree more customers join the month, and none of them pays at once:\n")
	if !d.direct {
		if err := d.meetCap(ctx); err != nil {
			return nil, err
		}
	}
	for id, code := range map[string]string{trustful: "insufficient_funds", thief: "stolen_card"} {
		times := 1
		if id == thief {
			times = 1 << 30
		}
		if err := d.stand.Call(ctx, http.MethodPost, "/control/faults", map[string]any{
			"match": map[string]string{"method": http.MethodPost, "path": "/v1/payment_intents/*/confirm", "customer": "cus_" + id},
			"fault": "decline", "code": code, "times": times,
		}, nil); err != nil {
			return nil, err
		}
		if err := d.join(ctx, id, 2500); err != nil {
			return nil, err
		}
	}
	for _, id := range []string{trustful, thief} {
		if err := d.awaitBill(ctx, id, domain.BillDeclined); err != nil {
			return nil, err
		}
	}
	d.say("  declines         %s has no money today, %s pays by a stolen card", trustful, thief)
	if err := d.stand.SetClock(ctx, clockDue.AddDate(0, 0, 2)); err != nil {
		return nil, err
	}
	if err := d.awaitBill(ctx, trustful, domain.BillPaid); err != nil {
		return nil, err
	}
	d.say("                   a day later %s is tried again by itself, and pays", trustful)
	if err := d.command(ctx, "write-off-billing", "demo-stolen", map[string]any{"customer_id": thief, "billing_period": d.period, "reason": "the card was stolen"}); err != nil {
		return nil, err
	}
	if err := d.awaitBill(ctx, thief, domain.BillWrittenOffStatus); err != nil {
		return nil, err
	}
	d.say("                   the bill of %s waits for another card, and is written off by an operator", thief)
	report, err := d.closeRun(ctx)
	if p, refused := errors.AsType[*client.Problem](err); refused && p.Code == domain.ErrRunNotOver.Code {
		find("the run cannot be closed: %s", p.Detail)
		return findings, nil
	}
	if err != nil {
		return nil, err
	}
	taken, err := d.takenAtStripe(ctx)
	if err != nil {
		return nil, err
	}
	proxied, err := d.readProxy(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range report.Totals {
		theirs := taken[t.Currency]
		delete(taken, t.Currency)
		if theirs != t.Taken || !d.direct && proxied.of(t.Currency).Settled != t.Taken {
			find("the closed run has taken %s, Stripe %s, and the proxy's books say %s", domain.Money{Minor: t.Taken, Currency: t.Currency},
				domain.Money{Minor: theirs, Currency: t.Currency}, proxied.settled(t.Currency))
		}
		if t.Expected != t.Paid+t.Closed+t.Open || t.Open != 0 {
			find("the closed run's report does not add up in %s: %+v", t.Currency, t)
		}
	}
	for _, c := range slices.Sorted(maps.Keys(taken)) {
		find("Stripe has taken %s, of which the closed run says nothing", domain.Money{Minor: taken[c], Currency: c})
	}
	equal := "equal to the minor unit in all three books"
	if len(findings) > 0 {
		equal = "which is not what the other books say"
	}
	d.say("  closed           the run %s of %s: %s declined, one bill written off; %s", d.period, plural(int(report.Bills), "bill", "bills"),
		plural(declines(report), "attempt was", "attempts were"), equal)
	return findings, nil
}

func declines(r domain.RunReport) (n int) {
	for _, d := range r.Declines {
		n += int(d.Declines)
	}
	return n
}

// join makes a customer known who owes an amount for the month at once.
func (d *demo) join(ctx context.Context, id string, minor int64) error {
	for _, command := range []struct {
		name string
		body map[string]any
	}{
		{"register-customer", map[string]any{"customer_id": id, "stripe_customer_id": "cus_" + id, "payment_method_id": "pm_card_visa"}},
		{"activate-subscription", map[string]any{
			"customer_id": id, "amount_minor": minor, "currency": "usd", "cadence": domain.Monthly, "anchor_day": 1, "time_zone": "UTC", "starts_on": "2026-12-01",
		}},
	} {
		if err := d.command(ctx, command.name, "", command.body); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) command(ctx context.Context, name, key string, body map[string]any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if _, _, err := d.service.Command(ctx, name, key, "", raw); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// awaitBill waits until a bill of the month is at a status and, if it is
// declined, what follows has been decided.
func (d *demo) awaitBill(ctx context.Context, id string, want domain.BillStatus) error {
	var story struct {
		Bill struct {
			Status  domain.BillStatus `json:"status"`
			Dunning json.RawMessage   `json:"dunning"`
		} `json:"bill"`
	}
	err := parts.AwaitEvery(ctx, serviceEvery, d.Patience, func() (bool, error) {
		err := d.service.Read(ctx, "/v1/customers/"+id+"/periods/"+d.period, nil, &story)
		if p, ok := errors.AsType[*client.Problem](err); ok && p.Status == http.StatusNotFound {
			return false, nil
		}
		decided := want != domain.BillDeclined || story.Bill.Dunning != nil
		return story.Bill.Status == want && decided, err
	})
	if err != nil {
		return fmt.Errorf("wait until the bill of %s is %s; it is %q: %w", id, want, story.Bill.Status, err)
	}
	return nil
}

// meetCap lets an operator take the room from the run's vault key. The next bill
// is held, the run pauses, and both go on once the room is back.
func (d *demo) meetCap(ctx context.Context) error {
	type room struct {
		Currency string `json:"currency"`
		Cap      int64  `json:"cap_minor"`
		Left     int64  `json:"left_minor"`
	}
	var keys struct {
		Keys []struct {
			ID   string `json:"id"`
			Caps []room `json:"caps"`
		} `json:"vault_keys"`
	}
	if err := d.proxy.Call(ctx, http.MethodGet, "/admin/v1/vault-keys?run="+url.QueryEscape(d.period), nil, &keys); err != nil {
		return err
	}
	if len(keys.Keys) != 1 {
		return fmt.Errorf("the run has %d vault keys", len(keys.Keys))
	}
	key := keys.Keys[0]
	i := slices.IndexFunc(key.Caps, func(c room) bool { return c.Currency == "usd" })
	if i < 0 {
		return errors.New("the run's vault key has no cap in usd")
	}
	limit, spent := key.Caps[i].Cap, key.Caps[i].Cap-key.Caps[i].Left
	set := func(to int64, why string) error {
		return d.proxy.Call(ctx, http.MethodPost, "/admin/v1/vault-keys/"+key.ID+"/raises", map[string]any{"currency": "usd", "to_minor": to, "reason": why}, nil)
	}
	usd := func(minor int64) domain.Money { return domain.Money{Minor: minor, Currency: "usd"} }
	if err := set(spent, "no more today"); err != nil {
		return err
	}
	if err := d.join(ctx, late, 3000); err != nil {
		return err
	}
	if err := d.awaitBill(ctx, late, domain.BillHeld); err != nil {
		return err
	}
	d.say("  the cap          is set to the %s that are spent: %s is held, and the run pauses", usd(spent), late)
	if err := set(limit+10_000, "there is room again"); err != nil {
		return err
	}
	if err := d.command(ctx, "resume-run", "demo-room", map[string]any{"billing_period": d.period, "reason": "there is room again"}); err != nil {
		return err
	}
	if err := d.awaitBill(ctx, late, domain.BillPaid); err != nil {
		return err
	}
	d.say("                   raised to %s, and the run resumed: %s is charged, once", usd(limit+10_000), late)
	return nil
}

// closeRun compares the month with Stripe and closes it.
func (d *demo) closeRun(ctx context.Context) (report domain.RunReport, err error) {
	// What has just been recorded is read everywhere before the month is over.
	if err := d.settled(ctx); err != nil {
		return report, err
	}
	var v struct {
		ID    int64  `json:"id"`
		State string `json:"state"`
		Error string `json:"error"`
	}
	answer, err := d.service.Post(ctx, "/v1/reconciliations", fmt.Appendf(nil, `{"period":%q}`, d.period))
	if err == nil {
		err = json.Unmarshal(answer, &v)
	}
	if err == nil {
		err = parts.AwaitEvery(ctx, serviceEvery, d.Patience, func() (bool, error) {
			err := d.service.Read(ctx, fmt.Sprintf("/v1/reconciliations/%d", v.ID), nil, &v)
			return v.State == "done" || v.State == "failed", err
		})
	}
	if err != nil || v.State != "done" {
		return report, fmt.Errorf("compare the month with Stripe: %s %w", v.Error, err)
	}
	answer, err = d.service.Post(ctx, "/v1/runs/"+d.period+"/close", fmt.Appendf(nil, `{"reconciliation_id":%d}`, v.ID))
	if err != nil {
		return report, fmt.Errorf("close the run: %w", err)
	}
	var closed struct {
		Report domain.RunReport `json:"report"`
	}
	err = json.Unmarshal(answer, &closed)
	return closed.Report, err
}

// takenAtStripe is what the stand-in's ledger has taken for the month.
func (d *demo) takenAtStripe(ctx context.Context) (map[domain.Currency]int64, error) {
	movements, err := d.stand.Ledger(ctx, "")
	if err != nil {
		return nil, err
	}
	taken := map[domain.Currency]int64{}
	for _, m := range ofPeriod(movements, d.period) {
		if m.Moved() {
			taken[domain.Currency(m.Currency)] += m.Amount
		}
	}
	return taken, nil
}
