package tracking

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// watermill-sql speaks database/sql, the rest of the house pgx. This driver
// lets both work in one transaction: it begins each one through pgx and leaves
// the pgx transaction, and how its commit went, with the unit of work that it
// finds in the context. Neither can be had from a *sql.Tx.

// openDB opens pool for database/sql. It keeps no connections of its own.
func openDB(pool *pgxpool.Pool) *sql.DB {
	db := sql.OpenDB(connector{stdlib.GetPoolConnector(pool)})
	db.SetMaxIdleConns(0)
	return db
}

type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &connection{conn.(*stdlib.Conn)}, nil
}

type connection struct{ *stdlib.Conn }

type unitKey struct{}

// BeginTx implements driver.ConnBeginTx.
func (c *connection) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	u, ok := ctx.Value(unitKey{}).(*unit)
	if !ok {
		return nil, errors.New("tracking: a transaction belongs to a unit of work")
	}
	tx, err := c.Conn.Conn().BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		if pgconn.SafeToRetry(err) {
			return nil, driver.ErrBadConn // the connection had died in the pool; take another
		}
		return nil, err
	}
	u.begun(tx)
	return &transaction{context.WithoutCancel(ctx), tx, u}, nil
}

type transaction struct {
	ctx  context.Context
	tx   pgx.Tx
	unit *unit
}

func (t *transaction) Commit() error {
	err := t.tx.Commit(t.ctx)
	t.unit.ended(err)
	return err
}

func (t *transaction) Rollback() error {
	err := t.tx.Rollback(t.ctx)
	t.unit.ended(errRolledBack)
	return err
}

var errRolledBack = errors.New("the transaction was rolled back")

// pageTx is the transaction as a handler sees it: the runtime ends it.
type pageTx struct{ pgx.Tx }

var errNotYours = errors.New("tracking: the page's transaction is ended by the runtime, not by the handler")

func (pageTx) Commit(context.Context) error   { return errNotYours }
func (pageTx) Rollback(context.Context) error { return errNotYours }
