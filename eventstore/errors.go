package eventstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/billonce/billonce/domain"
)

// VersionConflict says that a stream is no longer where the decision saw it.
type VersionConflict struct {
	Stream   domain.StreamID
	Expected int
}

func (e *VersionConflict) Error() string {
	return fmt.Sprintf("stream %s is no longer at version %d", e.Stream, e.Expected)
}

// UnknownEvent says that this build cannot read an event: its type is not in
// the catalogue, or its schema version is newer.
type UnknownEvent struct {
	Type          string
	SchemaVersion int16
}

func (e *UnknownEvent) Error() string {
	return fmt.Sprintf("event %s, schema version %d, is not known to this build", e.Type, e.SchemaVersion)
}

// ErrRaced says that a key was taken by another transaction after it had been
// found free. The same work again finds its receipt.
var ErrRaced = errors.New("the key was taken meanwhile")

// ErrCommitUnknown wraps a connection that broke while a commit was under way.
var ErrCommitUnknown = errors.New("the connection broke; it is not known whether the transaction committed")

// Transient reports whether the same work may succeed later, since it is not
// the work that is at fault: lost connections, deadlocks, serialisation failures,
// a server that is starting, stopping, full or read-only for the moment, one that
// refuses our user, a right or a table until somebody has put that right.
func Transient(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if errors.Is(err, ErrCommitUnknown) || errors.Is(err, ErrRaced) {
		return true
	}
	if _, ok := errors.AsType[*VersionConflict](err); ok {
		return true
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code {
		case "40001", "40P01", // serialisation failure, deadlock
			"55P03",                            // lock not available
			"57P01", "57P02", "57P03", "57P05", // shutting down, crashed, starting, idle session closed
			"25006", "25P03", // read-only, idle-in-transaction time-out
			"57014",                                     // cancelled: a time limit, or an operator
			"53000", "53100", "53200", "53300", "53400", // disk full, out of memory, too many connections
			"28000", "28P01", "3D000", // the password was changed, the database renamed
			"42501", "42P01": // a right was revoked; a table is away, as in the middle of a restore
			return true
		}
		return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "58") // connection exceptions; errors of the operating system
	}
	return brokenConnection(err) || errors.Is(err, context.DeadlineExceeded)
}

func brokenConnection(err error) bool {
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &network) || strings.Contains(err.Error(), "conn closed")
}

// ambiguous marks an error after which the commit may or may not have happened.
func ambiguous(err error) error {
	if _, unconnected := errors.AsType[*pgconn.ConnectError](err); err == nil || unconnected || pgconn.SafeToRetry(err) {
		return err // nothing was sent
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		// The server ended the session: it may have done so after the commit.
		if pg.Code == "57P01" || pg.Code == "57P02" {
			return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
		}
		return err
	}
	if brokenConnection(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
	}
	return err
}
