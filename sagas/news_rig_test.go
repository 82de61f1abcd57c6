package sagas_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/stripegateway"
)

// desk is where a replica takes in news and compares the books.
type desk struct {
	inbox     *sagas.Inbox
	reconcile *sagas.Reconciler
	scheduled *sagas.Reconciler // one that asks for a reconciliation every second
	counts    *counts
}

// counts are what an inbox has counted.
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) add(kind, result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[result]++
	c.n[kind+" "+result]++
}

func (c *counts) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[what]
}

// desk opens one for the service. Its inbox does not run by itself.
func (s *service) desk(wrap func(sagas.Gateway) sagas.Gateway) *desk {
	s.t.Helper()
	real := s.gateway()
	var err error
	var gateway sagas.Gateway = real
	if wrap != nil {
		gateway = wrap(real)
	}
	d := &desk{counts: &counts{}}
	d.inbox, err = sagas.NewInbox(sagas.InboxConfig{
		APIVersion: stripegateway.APIVersion, Poll: 20 * time.Millisecond, Actor: "inbox", Count: d.counts.add, Resolve: s.collector.Wake,
	}, s.d, s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	clock := sagas.ControlClock(s.stripe.ControlURL + "/control/clock")
	config := sagas.ReconcilerConfig{Poll: 20 * time.Millisecond, Actor: "reconciler"}
	if d.reconcile, err = sagas.NewReconciler(config, s.d, gateway, real, d.inbox, clock, s.log); err != nil {
		s.t.Fatal(err)
	}
	config.Every = time.Second
	if d.scheduled, err = sagas.NewReconciler(config, s.d, gateway, real, d.inbox, clock, s.log); err != nil {
		s.t.Fatal(err)
	}
	return d
}

// gateway is a road to the stand-in with time to spare.
func (r *rig) gateway() *stripegateway.Gateway {
	r.t.Helper()
	g, err := stripegateway.New(stripegateway.Config{BaseURL: r.stripe.APIURL, Key: "sk_test_rig", Timeout: 30 * time.Second, Log: r.log})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(g.Close)
	return g
}

// run applies news until the test ends.
func (d *desk) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := d.inbox.Run(ctx); err != nil {
			t.Errorf("inbox: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// told hands an event in, as the endpoint does.
func (d *desk) told(t *testing.T, n sagas.News) sagas.Stored {
	t.Helper()
	if n.APIVersion == "" {
		n.APIVersion = stripegateway.APIVersion
	}
	result, err := d.inbox.Store(t.Context(), n, []byte(`{"id":"`+n.EventID+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// books compares everything in scope, to the end.
func (d *desk) books(t *testing.T, scope sagas.Scope) sagas.Reconciliation {
	t.Helper()
	v, err := d.reconcile.Reconcile(t.Context(), scope)
	if err != nil || v.State != "done" {
		t.Fatalf("reconcile %s: %+v, %v", scope, v, err)
	}
	return v
}

func (d *desk) findings(t *testing.T, id int64) []sagas.Difference {
	t.Helper()
	all, err := d.reconcile.Findings(t.Context(), id, "", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// markers are those of a bill.
func markers(id domain.CustomerID, p domain.Period) map[string]string {
	return sagas.Order{CustomerID: id, Period: p}.Markers()
}

// plant makes a charge that nobody asked for.
func (r *rig) plant(p sim.Plant) sim.Movement {
	r.t.Helper()
	if p.Amount == 0 {
		p.Amount = 5000
	}
	if p.Currency == "" {
		p.Currency = "usd"
	}
	m, err := r.stripe.PlantCharge(p)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}
