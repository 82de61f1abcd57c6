package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// When billingd is killed, in percent of the customers charged; how many percent
// later again, should the kill have met nothing in flight; and how many percent
// after the last one the proxy is killed.
const (
	killAt      = 30
	killAgain   = 15
	killProxyAt = 25
)

// ledgerEvery is how often the ledger is read: what is read takes the same two
// cores as what is watched.
const ledgerEvery = 25 * time.Millisecond

// charge lets the month be billed, with the kill in the middle.
func (d *demo) charge(ctx context.Context) error {
	defer d.showProgress("  charging")()
	if !d.NoKill {
		at := killAt
		for ; !d.kill.done && at < 100 && len(d.ledger.charged) < len(d.Customers); at += killAgain {
			if err := d.until(ctx, len(d.Customers)*at/100); err != nil {
				return err
			}
			if err := d.killService(ctx); err != nil {
				return err
			}
			if err := d.startService(ctx); err != nil {
				return err
			}
			var err error
			if d.service, err = d.client(); err != nil {
				return err
			}
		}
		if err := d.until(ctx, min(len(d.Customers)*(at-killAgain+killProxyAt)/100, len(d.Customers))); err != nil {
			return err
		}
		if err := d.killProxy(ctx); err != nil {
			return err
		}
	}
	if err := d.until(ctx, len(d.Customers)); err != nil {
		if errors.Is(err, parts.ErrTooLong) {
			return nil // the account will tell who is missing
		}
		return err
	}
	if d.kill.done {
		// Whatever the dead process had begun has lost its claim by then.
		if err := parts.Pause(ctx, time.Until(d.kill.at.Add(lease+stripeTimeout))); err != nil {
			return err
		}
	}
	return nil
}

// showProgress shows how many customers are charged until the returned function
// is called.
func (d *demo) showProgress(label string) (end func()) {
	d.bar = d.Progress.Start(label, "customers", len(d.Customers))
	return func() {
		d.bar.End()
		d.bar = nil
	}
}

// until follows the ledger until so many customers are charged.
func (d *demo) until(ctx context.Context, customers int) error {
	still := parts.NewStopwatch()
	for len(d.ledger.charged) < customers {
		more, err := d.ledger.read(ctx)
		if err != nil {
			return err
		}
		d.bar.Set(len(d.ledger.charged))
		if more {
			still.Restart()
		}
		if still.Look() > d.Patience {
			d.explain(ctx)
			return parts.ErrTooLong
		}
		if err := parts.Pause(ctx, ledgerEvery); err != nil {
			return err
		}
	}
	return nil
}

// killService kills billingd, makes sure that it is dead, and says what it has
// left in flight.
func (d *demo) killService(ctx context.Context) error {
	pid := d.billingd.Pid()
	if err := d.billingd.Kill(); err != nil {
		return err
	}
	d.kill.at = time.Now()
	if conn, err := net.DialTimeout("tcp", strings.TrimPrefix(d.api, "http://"), time.Second); err == nil {
		conn.Close()
		return fmt.Errorf("kill billingd: process %d is gone, yet %s answers", pid, d.api)
	}
	names, err := d.inFlight(ctx)
	if err != nil {
		return err
	}
	if err := d.stand.ClearFaults(ctx); err != nil {
		return err
	}
	if _, err := d.ledger.read(ctx); err != nil {
		return err
	}
	d.kill.charges = len(d.ledger.movements)
	d.kill.inFlight = map[string]bool{}
	unheard := 0
	for _, name := range names {
		d.kill.inFlight[name] = true
		if d.ledger.charged[name] {
			unheard++
		}
	}
	d.kill.done = len(names) > 0
	d.say("  kill -9 %d: billingd is dead after %s, with %s in flight; of those Stripe has charged %d, and the service does not know.",
		pid, plural(len(d.ledger.charged), "charge", "charges"), plural(len(names), "bill", "bills"), unheard)
	return nil
}

// killProxy kills the spend proxy and starts it again where it was.
func (d *demo) killProxy(ctx context.Context) error {
	pid := d.spendproxy.Pid()
	if err := d.spendproxy.Kill(); err != nil {
		return err
	}
	if _, err := d.ledger.read(ctx); err != nil {
		return err
	}
	d.say("  kill -9 %d: spendproxy is dead after %s; nobody else has the Stripe key. It is started again.", pid, plural(len(d.ledger.charged), "charge", "charges"))
	return d.startProxy(ctx, strings.TrimPrefix(d.proxy.Address, "http://"))
}

// explain prints where the bills rest that were not charged.
func (d *demo) explain(ctx context.Context) {
	d.say("  No charge for %s. Where the rest stands:", d.Patience)
	var page struct {
		Items []struct {
			CustomerID string `json:"customer_id"`
			Status     string `json:"status"`
			Reason     string `json:"reason"`
			Evidence   string `json:"evidence"`
		} `json:"items"`
	}
	if err := d.service.Read(ctx, "/v1/charges", url.Values{"period": {d.period}, "status": {"open"}, "limit": {"20"}}, &page); err != nil {
		d.say("    the charges cannot be read: %v", err)
	}
	table := console.NewTable("customer", "status", "reason", "evidence")
	for _, c := range page.Items {
		table.Row(c.CustomerID, c.Status, c.Reason, c.Evidence)
	}
	if len(page.Items) > 0 {
		_ = table.Write(d.Out, "    ")
	}
	processors, err := parts.ReadProcessors(ctx, d.service)
	if err != nil {
		d.say("    the processors cannot be read: %v", err)
	}
	if behind := processors.Behind(); behind != "" {
		d.say("    processors: %s", behind)
	}
	d.say("    the log of billingd is %s", d.billingd.Log)
}
