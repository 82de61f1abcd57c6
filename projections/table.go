package projections

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// table says how a row of Go is a row of SQL, once: reading, writing and the
// statements follow from it. The first keys columns are the primary key.
type table[R any] struct {
	name    string
	keys    int
	columns []column[R]
}

type column[R any] struct {
	name, typ string
	field     func(*R) any   // where a scan puts the value
	array     func([]*R) any // the values of many rows, for unnest
}

// col is a column whose value is the field that at points to.
func col[R any, T value](name string, at func(*R) *T) column[R] {
	return column[R]{
		name:  name,
		typ:   sqlType[T](),
		field: func(r *R) any { return at(r) },
		array: func(rows []*R) any {
			values := make([]T, len(rows))
			for i, r := range rows {
				values[i] = *at(r)
			}
			return values
		},
	}
}

type value interface {
	string | int16 | int | int64 | bool | time.Time | *time.Time
}

func sqlType[T value]() string {
	switch any(*new(T)).(type) {
	case int16:
		return "smallint"
	case int:
		return "integer"
	case int64:
		return "bigint"
	case bool:
		return "boolean"
	case time.Time, *time.Time:
		return "timestamptz"
	}
	return "text"
}

// as gives the column another SQL type.
func (c column[R]) as(typ string) column[R] {
	c.typ = typ
	return c
}

func (t table[R]) names(prefix string) string {
	names := make([]string, len(t.columns))
	for i, c := range t.columns {
		names[i] = prefix + c.name
	}
	return strings.Join(names, ", ")
}

// upsertSQL writes any number of rows, one array a column.
func (t table[R]) upsertSQL() string {
	arrays, sets, key := make([]string, len(t.columns)), []string{}, []string{}
	for i, c := range t.columns {
		arrays[i] = fmt.Sprintf("$%d::%s[]", i+1, c.typ)
		if i < t.keys {
			key = append(key, c.name)
		} else {
			sets = append(sets, c.name+" = excluded."+c.name)
		}
	}
	return "INSERT INTO " + t.name + " (" + t.names("") + ") SELECT * FROM unnest(" + strings.Join(arrays, ", ") +
		") ON CONFLICT (" + strings.Join(key, ", ") + ") DO UPDATE SET " + strings.Join(sets, ", ")
}

func (t table[R]) arrays(rows []*R) []any {
	args := make([]any, len(t.columns))
	for i, c := range t.columns {
		args[i] = c.array(rows)
	}
	return args
}

// queueUpsert adds the rows to a pipeline. A key may occur once among them.
func (t table[R]) queueUpsert(p *pgx.Batch, rows []*R) {
	if len(rows) > 0 {
		p.Queue(t.upsertSQL(), t.arrays(rows)...)
	}
}

// selectSQL reads whole rows; rest follows FROM <table>.
func (t table[R]) selectSQL(rest string) string {
	return "SELECT " + t.names(t.name+".") + " FROM " + t.name + " " + rest
}

// query reads whole rows. Its statement is planned for these arguments each
// time: a plan cached while a table was small would crawl once it has grown.
func (t table[R]) query(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]*R, error) {
	rows, err := tx.Query(ctx, sql, append([]any{pgx.QueryExecModeCacheDescribe}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", t.name, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*R, error) {
		r := new(R)
		return r, row.Scan(t.fields(r)...)
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", t.name, err)
	}
	return found, nil
}

// fields are where a scan of a whole row puts its values.
func (t table[R]) fields(r *R) []any {
	fields := make([]any, len(t.columns))
	for i, c := range t.columns {
		fields[i] = c.field(r)
	}
	return fields
}

// send runs a pipeline of writes.
func send(ctx context.Context, tx pgx.Tx, p *pgx.Batch) error {
	if p.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, p).Close()
}
