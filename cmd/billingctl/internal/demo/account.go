package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// shownFindings is how many things that are wrong are printed.
const shownFindings = 10

// account asks both sides what happened, prints it, and judges it.
func (d *demo) account(ctx context.Context) error {
	books, err := readBooks(ctx, d.service, d.period, len(d.Customers), d.Patience)
	if err != nil {
		return err
	}
	movements, err := d.stand.Ledger(ctx, "") // anew and whole: what was read on the way may have changed
	if err != nil {
		return err
	}
	count, err := d.stand.Counters(ctx)
	if err != nil {
		return err
	}
	measured, err := parts.ReadMetrics(ctx, d.api)
	if err != nil {
		return err
	}
	proxied, err := d.readProxy(ctx)
	if err != nil {
		return err
	}
	a := newAudit(d.Customers, movements)
	differences := append(books.compare(a, movements), proxied.compare(a)...)
	a.findings = append(a.findings, differences...)
	if count.UnkeyedPOSTs > 0 {
		a.find("%d POSTs came to Stripe without an Idempotency-Key", count.UnkeyedPOSTs)
	}
	if count.Mismatches > 0 {
		a.find("%d POSTs came to Stripe with a key of other parameters", count.Mismatches)
	}

	d.say("\nThree books, each kept by itself: the stand-in's ledger, the service's, the proxy's:\n")
	_ = a.table(books, proxied).Write(d.Out, "  ") // whoever listens may be gone
	d.say("")
	equal := "differ from the ledger"
	if len(differences) == 0 {
		equal = fmt.Sprintf("equal the ledger, to the minor unit and %s by id", plural(len(books.charges), "charge", "charges"))
	}
	d.say("  the three books  %s", equal)
	d.say("  at Stripe        %d POSTs without a key, %d with a key of other parameters; %s answered by a replay, %d by a conflict",
		count.UnkeyedPOSTs, count.Mismatches, plural(int(count.Replays), "repeat was", "repeats were"), count.Conflicts)
	d.pace(movements, costBetween(nil, measured))
	troubled, err := d.trouble(ctx)
	if err != nil {
		return err
	}
	a.findings = append(a.findings, troubled...)
	d.say("")
	replayed, err := d.replay(ctx)
	if err != nil {
		return err
	}
	a.findings = append(a.findings, replayed...)
	if err := d.part(ctx); err != nil {
		a.find("%v", err)
	}
	return d.verdict(a, map[bool]string{true: " books=equal", false: " books=different"}[len(differences) == 0])
}

// table is the audit's, by currency.
func (a audit) table(b books, p proxyBooks) *console.Table {
	t := console.NewTable("currency", "customers#", "owed#", "Stripe's#", "service's#", "proxy's#", "charges#", "twice#", "missing#")
	for _, s := range a.sums {
		t.Row(s.currency, s.customers, s.owed, s.chargedSum, b.taken(s.currency), p.settled(s.currency), s.charges, s.twice, s.missing)
	}
	t.Row("all", a.customers, "", "", "", "", a.charges, len(a.twice), len(a.missing))
	return t
}

// pace prints how fast the month was billed, by the stand-in's clock.
func (d *demo) pace(movements []parts.Movement, cost cost) {
	if !d.kill.done {
		charges, took := span(movements)
		d.say("  pace             %s from the first to the last in %s: %.0f bills/s", plural(charges, "charge", "charges"), seconds(took), perSecond(charges, took))
		d.say("  commits a bill   %s", cost.commits())
		return
	}
	var claimed, free []parts.Movement
	for _, m := range movements[min(d.kill.charges, len(movements)):] {
		if d.kill.inFlight[m.Customer] {
			claimed = append(claimed, m)
		} else {
			free = append(free, m)
		}
	}
	charges, took := span(movements[:min(d.kill.charges, len(movements))])
	d.say("  pace             before the kill %s in %s, confirms answered %s late: %.0f bills/s", plural(charges, "charge", "charges"), seconds(took), d.Latency, perSecond(charges, took))
	charges, took = span(free)
	d.say("                   after the restart %s in %s, first to last: %.0f bills/s", plural(charges, "charge", "charges"), seconds(took), perSecond(charges, took))
	charges, _ = span(claimed)
	d.say("                   and %d more once the dead process's claims had run out, after %s", charges, lease)
	d.say("  commits a bill   after the restart: %s", cost.commits())
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// part stops everything in order, or says how to reach it if it is kept.
func (d *demo) part(ctx context.Context) error {
	if !d.Keep {
		return d.stop(context.WithoutCancel(ctx))
	}
	if err := d.folder.Keep(); err != nil {
		return fmt.Errorf("keep the demo: %w", err)
	}
	k := d.addresses()
	first := d.Customers[0].CustomerID
	d.say("\nEverything is left running.\n")
	d.say("  billingd    %s  (token %s)", k.API, k.Token)
	d.say("  stripesim   %s, control %s", k.Stripe, k.Control)
	d.say("  spendproxy  %s  (admin token %s)", k.Proxy, k.ProxyToken)
	d.say("  logs        %s\n", d.folder.Dir)
	d.say("To try:\n")
	d.say("  export BILLINGCTL_URL=%s BILLINGCTL_TOKEN=%s", k.API, k.Token)
	d.say("  export SPENDPROXY_ADMIN_URL=%s SPENDPROXY_ADMIN_TOKEN=%s", k.Proxy, k.ProxyToken)
	d.say("  export DATABASE_URL='%s'", k.Database)
	d.say("  curl %s/", k.API)
	d.say("  curl -H \"Authorization: Bearer $BILLINGCTL_TOKEN\" $BILLINGCTL_URL/v1/runs/%s", d.period)
	d.say("  curl -H \"Authorization: Bearer $BILLINGCTL_TOKEN\" $BILLINGCTL_URL/v1/customers/%s/periods/%s", first, d.period)
	d.say("  curl -H \"Authorization: Bearer $BILLINGCTL_TOKEN\" -H 'Content-Type: application/json' \\")
	d.say("       -d '{\"customer_id\":\"%s\",\"billing_period\":\"2027-01\",\"amount_minor\":%d,\"currency\":\"%s\"}' \"$BILLINGCTL_URL/v1/commands/charge-billing?wait=5s\"",
		first, d.Customers[0].AmountMinor, d.Customers[0].Currency)
	d.say("  curl -d '{\"set\":\"2027-01-02T12:00:00Z\"}' %s   # the next month falls due", d.stand.ClockURL())
	d.say("  curl '%s/control/ledger?customer=%s'", k.Control, d.Customers[0].StripeCustomerID)
	d.say("  %s runs show %s", d.Command, d.period)
	d.say("  %s events show %s", d.Command, first)
	d.say("  %s vault-keys list", d.Command)
	d.say("  %s replay bills\n", d.Command)
	d.say("To stop it and remove everything: %s\n", d.StopWith)
	return nil
}

// verdict prints what is wrong, and the last line.
func (d *demo) verdict(a audit, books string) error {
	for i, f := range a.findings {
		if i == shownFindings {
			d.say("WRONG: and %d more", len(a.findings)-i)
			break
		}
		d.say("WRONG: %s", f)
	}
	if !a.right() {
		d.say("The logs are in %s%s.\n", d.folder.Dir, map[bool]string{false: " until the next demo"}[d.Keep])
	}
	d.say("demo: customers=%d charged=%d twice=%d missing=%d%s", a.customers, a.charged, len(a.twice), len(a.missing), books)
	if !a.right() {
		return ErrWrong
	}
	return nil
}
