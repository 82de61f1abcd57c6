package tracking

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"

	"github.com/jackc/pgx/v5"
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
	return &connection{Conn: conn.(*stdlib.Conn)}, nil
}

// connection is a connection of the pool. BEGIN travels with the first query:
// a round trip saved on each page, and on each look that finds nothing.
type connection struct {
	*stdlib.Conn
	unsent *transaction // begun, and the server does not know yet
}

type unitKey struct{}

// BeginTx implements driver.ConnBeginTx.
func (c *connection) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	u, ok := ctx.Value(unitKey{}).(*unit)
	if !ok {
		return nil, errors.New("tracking: a transaction belongs to a unit of work")
	}
	c.unsent = &transaction{ctx: context.WithoutCancel(ctx), unit: u}
	return c.unsent, nil
}

// QueryContext implements driver.QueryerContext.
func (c *connection) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	t := c.unsent
	if t == nil {
		return c.Conn.QueryContext(ctx, query, args)
	}
	c.unsent = nil
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	result := &result{}
	batch.Queue(query, values...).Query(result.read)
	answers := c.Conn.Conn().SendBatch(ctx, batch)
	t.tx = answers.Tx()
	t.unit.begun(t.tx)
	if err := answers.Close(); err != nil {
		return nil, err
	}
	return result, nil
}

// result is what the first query of a transaction gave.
type result struct {
	columns []string
	values  [][]any
}

func (r *result) read(rows pgx.Rows) error {
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return err
		}
		r.values = append(r.values, values)
	}
	if err := rows.Err(); err != nil {
		return err // and a query that failed has no columns to ask for
	}
	for _, f := range rows.FieldDescriptions() {
		r.columns = append(r.columns, f.Name)
	}
	return nil
}

// The rest implements driver.Rows.

func (r *result) Columns() []string { return r.columns }
func (r *result) Close() error      { return nil }
func (r *result) Next(into []driver.Value) error {
	if len(r.values) == 0 {
		return io.EOF
	}
	for i, v := range r.values[0] {
		into[i] = v
	}
	r.values = r.values[1:]
	return nil
}

type transaction struct {
	ctx  context.Context
	tx   pgx.Tx // nil until the first query
	unit *unit
}

func (t *transaction) Commit() error {
	if t.tx == nil {
		t.unit.ended(nil)
		return nil
	}
	err := t.tx.Commit(t.ctx)
	t.unit.ended(err)
	return err
}

func (t *transaction) Rollback() error {
	t.unit.ended(errRolledBack)
	if t.tx == nil {
		return nil
	}
	return t.tx.Rollback(t.ctx)
}

var errRolledBack = errors.New("the transaction was rolled back")

// pageTx is the transaction as a handler sees it: the runtime ends it.
type pageTx struct{ pgx.Tx }

var errNotYours = errors.New("tracking: the page's transaction is ended by the runtime, not by the handler")

func (pageTx) Commit(context.Context) error   { return errNotYours }
func (pageTx) Rollback(context.Context) error { return errNotYours }
