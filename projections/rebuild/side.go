package rebuild

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
)

// side is a schema beside the live tables, which holds tables of the same names
// and shapes.
type side string

// The sides.
const (
	building side = "rebuild"
	trial    side = "rebuild_trial"
	former   side = "rebuild_former"
)

// table is a table of a read model.
type table struct {
	name string
	live string   // with its schema, quoted
	key  []string // quoted columns of its primary key
}

func (t table) on(s side) string { return pgx.Identifier{string(s), t.name}.Sanitize() }

// tablesOf finds the live tables of a projection.
func tablesOf(ctx context.Context, q eventstore.Querier, p projections.Projection) ([]table, error) {
	tables := make([]table, len(p.Tables))
	for i, name := range p.Tables {
		t := table{name: name}
		err := q.QueryRow(ctx, `SELECT format('%I.%I', n.nspname, c.relname), (SELECT array_agg(quote_ident(a.attname) ORDER BY array_position(i.indkey::int2[], a.attnum))
				FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[]) WHERE i.indrelid = c.oid AND i.indisprimary)
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)`, pgx.Identifier{name}.Sanitize()).Scan(&t.live, &t.key)
		if err != nil {
			return nil, fmt.Errorf("find the table %s: %w", name, err)
		}
		tables[i] = t
	}
	return tables, nil
}

// create makes empty tables that are to hold some partitions.
func (s side) create(ctx context.Context, tx pgx.Tx, projection string, tables []table, scope []int16) error {
	if err := s.drop(ctx, tx, projection, tables); err != nil {
		return err
	}
	for _, t := range tables {
		if _, err := tx.Exec(ctx, "CREATE TABLE "+t.on(s)+" (LIKE "+t.live+" INCLUDING ALL)"); err != nil {
			return fmt.Errorf("make %s: %w", t.on(s), err)
		}
	}
	if _, err := tx.Exec(ctx, `INSERT INTO rebuild_tokens (side, projection, partition, position) SELECT $1, $2, p, 0 FROM unnest($3::smallint[]) AS p`, s, projection, scope); err != nil {
		return fmt.Errorf("make the tokens of %s: %w", s, err)
	}
	return nil
}

func (s side) drop(ctx context.Context, tx pgx.Tx, projection string, tables []table) error {
	for _, t := range tables {
		if _, err := tx.Exec(ctx, "DROP TABLE IF EXISTS "+t.on(s)); err != nil {
			return fmt.Errorf("drop %s: %w", t.on(s), err)
		}
	}
	if _, err := tx.Exec(ctx, `DELETE FROM rebuild_tokens WHERE side = $1 AND projection = $2`, s, projection); err != nil {
		return fmt.Errorf("drop the tokens of %s: %w", s, err)
	}
	return nil
}

// become gives the tables to another side, whose own are dropped.
func (s side) become(ctx context.Context, tx pgx.Tx, other side, projection string, tables []table) error {
	if err := other.drop(ctx, tx, projection, tables); err != nil {
		return err
	}
	for _, t := range tables {
		if _, err := tx.Exec(ctx, "ALTER TABLE "+t.on(s)+" SET SCHEMA "+pgx.Identifier{string(other)}.Sanitize()); err != nil {
			return fmt.Errorf("keep %s: %w", t.on(s), err)
		}
	}
	_, err := tx.Exec(ctx, `UPDATE rebuild_tokens SET side = $2 WHERE side = $1 AND projection = $3`, s, other, projection)
	return err
}

// reached reads which partitions the side holds, and up to where.
func (s side) reached(ctx context.Context, q eventstore.Querier, projection string) (v tracking.Vector, scope []int16, err error) {
	rows, err := q.Query(ctx, `SELECT partition, position FROM rebuild_tokens WHERE side = $1 AND projection = $2 ORDER BY partition`, s, projection)
	if err != nil {
		return v, nil, fmt.Errorf("read the tokens of %s: %w", s, err)
	}
	var partition int16
	var position int64
	if _, err := pgx.ForEachRow(rows, []any{&partition, &position}, func() error {
		v[partition], scope = position, append(scope, partition)
		return nil
	}); err != nil {
		return v, nil, fmt.Errorf("read the tokens of %s: %w", s, err)
	}
	return v, scope, nil
}

// alike reports whether the side's tables are there and have the shape of the
// live ones, which a migration may have changed.
func (s side) alike(ctx context.Context, q eventstore.Querier, tables []table) (bool, error) {
	shape := func(name string) (columns []string, err error) {
		err = q.QueryRow(ctx, `SELECT array_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull ORDER BY a.attnum)
			FROM pg_attribute a WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped`, name).Scan(&columns)
		if err != nil {
			return nil, fmt.Errorf("read the columns of %s: %w", name, err)
		}
		return columns, nil
	}
	for _, t := range tables {
		live, err := shape(t.live)
		if err != nil {
			return false, err
		}
		beside, err := shape(t.on(s))
		if err != nil || !slices.Equal(live, beside) {
			return false, err
		}
	}
	return true, nil
}

// enter makes the side's tables the ones that tx finds by their bare names.
func (s side) enter(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT set_config('search_path', quote_ident($1) || ', ' || current_setting('search_path'), true)`, string(s))
	if err != nil {
		return fmt.Errorf("enter %s: %w", s, err)
	}
	return nil
}
