package eventstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// code is an error that the server answered.
func code(c string) error { return &pgconn.PgError{Code: c} }

func TestTransient(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		err  error
		want bool
	}{
		{"nothing", nil, false},
		{"a refusal", domain.ErrAlreadyBilled, false},
		{"a reused key", domain.ErrKeyReused, false},
		{"an event of another build", &eventstore.UnknownEvent{Type: "x.y.v1"}, false},
		{"a programmer's mistake", errors.New("oops"), false},
		{"the caller gave up", context.Canceled, false},
		{"the caller gave up in a commit", fmt.Errorf("%w: %w", eventstore.ErrCommitUnknown, context.Canceled), false},
		{"a unique violation", code("23505"), false},
		{"a check violation", code("23514"), false},
		{"a bad value", code("22P02"), false},
		{"a missing column", code("42703"), false},

		{"time is up", context.DeadlineExceeded, true},
		{"a conflict", &eventstore.VersionConflict{Stream: "customer/ada"}, true},
		{"a race for a key", eventstore.ErrRaced, true},
		{"an unknown commit", eventstore.ErrCommitUnknown, true},
		{"a deadlock", code("40P01"), true},
		{"a serialisation failure", code("40001"), true},
		{"a lock not had in time", code("55P03"), true},
		{"shutting down", code("57P01"), true},
		{"crashed", code("57P02"), true},
		{"starting", code("57P03"), true},
		{"closed for idleness", code("57P05"), true},
		{"closed for idleness in a transaction", code("25P03"), true},
		{"a standby", code("25006"), true},
		{"the disk is full", code("53100"), true},
		{"out of memory", code("53200"), true},
		{"too many connections", code("53300"), true},
		{"the disk fails", code("58030"), true},
		{"cancelled by an operator", code("57014"), true},
		{"a table that a restore has not brought back", code("42P01"), true},
		{"a right that was revoked", code("42501"), true},
		{"a password that was changed", code("28P01"), true},
		{"a database that was renamed", code("3D000"), true},
		{"a connection failure", code("08006"), true},
		{"a refused connection", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errors.New("refused"))}, true},
		{"a connection that ended", io.EOF, true},
		{"a connection that ended in a message", io.ErrUnexpectedEOF, true},
		{"a closed connection", net.ErrClosed, true},
	} {
		for _, err := range []error{c.err, wrapped(c.err)} {
			if got := eventstore.Transient(err); got != c.want {
				t.Errorf("%s (%v) is transient: %t, want %t", c.what, err, got, c.want)
			}
		}
	}
}

func wrapped(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("append to customer/ada: %w", fmt.Errorf("could not insert message as row: %w", err))
}

// Only what may have happened after the commit was sent is unknown.
func TestAmbiguous(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                       {nil, false},
		"a violated check":              {code("23514"), false},
		"a deadlock":                    {code("40P01"), false},
		"a session ended by the server": {code("57P01"), true},
		"a crash":                       {code("57P02"), true},
		"a connection that ended":       {io.ErrUnexpectedEOF, true},
		"a time-out":                    {context.DeadlineExceeded, true},
		"a cancelled context":           {context.Canceled, true},
		"a failed dial":                 {&pgconn.ConnectError{}, false},
	} {
		if what == "a failed dial" {
			_, c.err = pgconn.Connect(context.Background(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable&connect_timeout=2")
		}
		got := eventstore.Ambiguous(wrapped(c.err))
		if errors.Is(got, eventstore.ErrCommitUnknown) != c.want {
			t.Errorf("%s: %v", what, got)
		}
		if c.err != nil && !errors.Is(got, c.err) {
			t.Errorf("%s: the cause is lost in %v", what, got)
		}
	}
}

func TestErrorsSayWhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want []string
	}{
		{&eventstore.VersionConflict{Stream: "customer/ada", Expected: 7}, []string{"customer/ada", "7"}},
		{&eventstore.UnknownEvent{Type: "customer.promoted.v1", SchemaVersion: 3}, []string{"customer.promoted.v1", "3"}},
	} {
		for _, word := range c.want {
			if !strings.Contains(c.err.Error(), word) {
				t.Errorf("%q does not say %s", c.err, word)
			}
		}
	}
}
