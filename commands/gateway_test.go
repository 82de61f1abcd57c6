package commands_test

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// unreachable is a dispatcher whose database cannot be reached until it is
// repaired.
func unreachable(t *testing.T) (d *commands.Dispatcher, repair func()) {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	var repaired atomic.Bool
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if !repaired.Load() {
			return nil, errors.New("the cable is out")
		}
		return dial(ctx, network, address)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return dispatcherOn(t, pool), func() { repaired.Store(true) }
}

// waits is a Wait that notes what it was asked for and takes no time.
type waits struct {
	told []time.Duration
	then func(n int) error
}

func (w *waits) wait(_ context.Context, d time.Duration) error {
	w.told = append(w.told, d)
	if w.then != nil {
		return w.then(len(w.told))
	}
	return nil
}

// After an error that may pass, the same command is sent again, and so under
// the same key.
func TestGatewayTriesAgain(t *testing.T) {
	t.Parallel()
	d, repair := unreachable(t)
	w := &waits{then: func(n int) error {
		if n == 3 {
			repair()
		}
		return nil
	}}
	gateway := commands.Gateway{Dispatcher: d, Retry: commands.Exponential{First: 10 * time.Millisecond, Ceiling: time.Second, Most: 10}, Wait: w.wait}
	receipt, err := gateway.Send(t.Context(), commands.Of(commands.NewRegisterCustomer(ada, "cus_1", "pm_1")), by)
	if err != nil || receipt.Key != "register-customer/ada" || receipt.Version != 1 {
		t.Errorf("%+v, %v", receipt, err)
	}
	if want := []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond}; !slices.Equal(w.told, want) {
		t.Errorf("waited %v, want %v", w.told, want)
	}
	if names := stream(t, d, ada); len(names) != 1 {
		t.Errorf("the stream is %q", names)
	}
}

func TestGatewayGivesUp(t *testing.T) {
	t.Parallel()
	d, _ := unreachable(t)
	w := &waits{}
	gateway := commands.Gateway{Dispatcher: d, Retry: commands.Interval{Every: time.Second, Most: 4}, Wait: w.wait}
	_, err := gateway.Send(t.Context(), commands.Of(commands.NewRegisterCustomer(ada, "cus_1", "pm_1")), by)
	if !eventstore.Transient(err) {
		t.Errorf("gave up with %v", err)
	}
	if want := []time.Duration{time.Second, time.Second, time.Second}; !slices.Equal(w.told, want) {
		t.Errorf("waited %v, want %v", w.told, want)
	}
}

func TestGatewayGivesUpWithItsCaller(t *testing.T) {
	t.Parallel()
	d, _ := unreachable(t)
	w := &waits{then: func(int) error { return context.Canceled }}
	gateway := commands.Gateway{Dispatcher: d, Retry: commands.Interval{Every: time.Second, Most: 100}, Wait: w.wait}
	_, err := gateway.Send(t.Context(), commands.Of(commands.NewRegisterCustomer(ada, "cus_1", "pm_1")), by)
	if err == nil || len(w.told) != 1 {
		t.Errorf("waited %v, %v", w.told, err)
	}
}

// A refusal is an answer, and an error that stays is not tried again.
func TestGatewayTakesAnAnswer(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	w := &waits{}
	gateway := commands.Gateway{Dispatcher: d, Retry: commands.Interval{Most: 100}, Wait: w.wait}
	send := func(c commands.Command[domain.Customer]) error {
		_, err := gateway.Send(t.Context(), commands.Of(c), by)
		return err
	}
	if err := send(commands.NewChargeBilling(ada, nov, usd49)); !errors.Is(err, domain.ErrUnknownCustomer) {
		t.Errorf("refused: %v", err)
	}
	if err := send(commands.NewRegisterCustomer(ada, "cus_1", "pm_1")); err != nil {
		t.Error(err)
	}
	if err := send(commands.NewRegisterCustomer(ada, "cus_2", "pm_1")); !errors.Is(err, domain.ErrKeyReused) {
		t.Errorf("a reused key: %v", err)
	}
	if _, err := d.Log().Pool().Exec(t.Context(), `ALTER TABLE command_keys RENAME COLUMN fingerprint TO former`); err != nil {
		t.Fatal(err)
	}
	if err := send(commands.NewRegisterCustomer(bob, "cus_2", "pm_2")); err == nil || eventstore.Transient(err) {
		t.Errorf("a missing column: %v", err)
	}
	if len(w.told) != 0 {
		t.Errorf("waited %v", w.told)
	}
}

func TestRetrySchedulers(t *testing.T) {
	t.Parallel()
	type step struct {
		wait  time.Duration
		again bool
	}
	for _, c := range []struct {
		what      string
		scheduler commands.RetryScheduler
		want      map[int]step
	}{
		{"an interval", commands.Interval{Every: 5 * time.Second, Most: 3}, map[int]step{1: {5 * time.Second, true}, 2: {5 * time.Second, true}, 3: {5 * time.Second, false}, 9: {5 * time.Second, false}}},
		{"no second try", commands.Interval{Every: time.Second, Most: 1}, map[int]step{1: {time.Second, false}}},
		{"doubling", commands.Exponential{First: time.Second, Ceiling: time.Minute, Most: 100}, map[int]step{
			1: {time.Second, true}, 2: {2 * time.Second, true}, 3: {4 * time.Second, true}, 6: {32 * time.Second, true}, 7: {time.Minute, true}, 99: {time.Minute, true}, 100: {time.Minute, false},
		}},
		{"doubling for ever", commands.Exponential{First: time.Second, Ceiling: time.Hour, Most: math.MaxInt}, map[int]step{1_000_000: {time.Hour, true}}},
		{"a ceiling below the first", commands.Exponential{First: time.Minute, Ceiling: time.Second, Most: 5}, map[int]step{1: {time.Second, true}, 2: {time.Second, true}}},
	} {
		for n, want := range c.want {
			if wait, again := c.scheduler.After(n); wait != want.wait || again != want.again {
				t.Errorf("%s: after try %d it waits %s, again %t; want %s, %t", c.what, n, wait, again, want.wait, want.again)
			}
		}
	}
}
