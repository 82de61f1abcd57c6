package tracking

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// unit is a unit of work from the wait for partitions to the end of the
// transaction: what was claimed, handled and moved in it.
type unit struct {
	offered  uint64 // partitions given by the readiness
	thorough uint64
	started  time.Time

	sqlTx   *sql.Tx
	release context.CancelFunc
	slot    bool // it holds one of the runtime's
	alone   bool // no other page that may be marked is under way
	claims  []claim
	slices  []*slice // what was read of them; nil: nothing yet
	page    *Page    // what the handler was given; nil: nothing
	letters []Letter
	marked  []*slice // whose start was written down
	more    uint64   // partitions with more to do at once

	failure  error // why the transaction was rolled back
	timedOut bool

	mu     sync.Mutex
	tx     pgx.Tx
	over   bool
	result error // of the commit
}

func (u *unit) begun(tx pgx.Tx) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tx = tx
}

func (u *unit) ended(result error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over, u.result = true, result
}

// outcome is nil if the transaction is known to have committed.
func (u *unit) outcome() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.over {
		return errors.New("the transaction was left open")
	}
	return u.result
}

// cut breaks the unit's connection: the server rolls back, and whatever waits
// for it returns.
func (u *unit) cut() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tx != nil && !u.over {
		_ = u.tx.Conn().PgConn().Conn().Close()
	}
}

// rollback ends the transaction so that no token can move: the statement that
// acknowledges the message meets a transaction that is over.
func (u *unit) rollback(cause error) {
	u.failure = cause
	_ = u.sqlTx.Rollback() // on an error the connection is closed, to the same effect
}

func (u *unit) context(ctx context.Context) context.Context {
	return context.WithValue(ctx, unitKey{}, u)
}
