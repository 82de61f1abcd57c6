package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/projections"
)

// model is a projection with its tables.
type model struct {
	projections.Projection
	tables []modelTable
}

// modelTable is a table of a read model.
type modelTable struct {
	name string
	live string   // the real one, however the session may see it
	key  []string // columns of its primary key
}

// describe finds the read models' tables.
func describe(ctx context.Context, conn *pgx.Conn) ([]model, error) {
	var all []model
	for _, p := range projections.All() {
		m := model{Projection: p}
		for _, name := range p.Tables {
			t := modelTable{name: name}
			err := conn.QueryRow(ctx, `SELECT format('%I.%I', n.nspname, c.relname), (SELECT array_agg(a.attname::text ORDER BY array_position(i.indkey::int2[], a.attnum))
					FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[]) WHERE i.indrelid = c.oid AND i.indisprimary)
				FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)`, pgx.Identifier{name}.Sanitize()).Scan(&t.live, &t.key)
			if err != nil {
				return nil, fmt.Errorf("find the table %s of %s: %w", name, p.Name, err)
			}
			m.tables = append(m.tables, t)
		}
		all = append(all, m)
	}
	return all, nil
}

// shadow makes an empty temporary table beside each real one. It has the real
// one's name, so the projections' own code folds into it. Of its indexes only
// the primary key is of use here.
func shadow(ctx context.Context, conn *pgx.Conn, models []model) error {
	for _, m := range models {
		for _, t := range m.tables {
			name, key := pgx.Identifier{t.name}.Sanitize(), make([]string, len(t.key))
			for i, column := range t.key {
				key[i] = pgx.Identifier{column}.Sanitize()
			}
			for _, sql := range []string{
				"CREATE TEMPORARY TABLE " + name + " (LIKE " + t.live + " INCLUDING DEFAULTS)",
				"ALTER TABLE pg_temp." + name + " ADD PRIMARY KEY (" + strings.Join(key, ", ") + ")",
			} {
				if _, err := conn.Exec(ctx, sql); err != nil {
					return fmt.Errorf("make a table to fold %s into: %w", t.name, err)
				}
			}
		}
	}
	return nil
}

// foldModels hands each projection what its processor has handled.
func (w *worker) foldModels(ctx context.Context, events []eventstore.Recorded) error {
	handled := make([]eventstore.Recorded, 0, len(events))
	for i, m := range w.models {
		reader := w.readers[processors+i]
		handled = handled[:0]
		for _, r := range events {
			if r.Event != nil && reader.wants(r.Name()) && reader.handled(r) {
				handled = append(handled, r)
			}
		}
		if err := m.Fold(ctx, w.fold, handled); err != nil {
			return err
		}
	}
	return nil
}

// compareModels compares the rows of the worker's partitions.
func (w *worker) compareModels(ctx context.Context) error {
	for _, m := range w.models {
		for _, t := range m.tables {
			if err := w.compareTable(ctx, m.Name, t); err != nil {
				return fmt.Errorf("compare %s: %w", t.name, err)
			}
		}
	}
	return nil
}

func (w *worker) compareTable(ctx context.Context, projection string, t modelTable) error {
	if _, err := w.fold.Exec(ctx, "ANALYZE pg_temp."+pgx.Identifier{t.name}.Sanitize()); err != nil {
		return err
	}
	key := make([]string, len(t.key))
	for i, column := range t.key {
		key[i] = pgx.Identifier{column}.Sanitize()
	}
	// A row whose partition is none at all is seen by whoever has partition 0.
	rows, err := w.fold.Query(ctx, `SELECT to_jsonb(l)::text, to_jsonb(f)::text
		FROM (SELECT * FROM `+t.live+` WHERE CASE WHEN partition BETWEEN 0 AND 63 THEN partition ELSE 0 END = ANY ($1)) l
		FULL JOIN pg_temp.`+pgx.Identifier{t.name}.Sanitize()+` f USING (`+strings.Join(key, ", ")+`)
		WHERE l::text IS DISTINCT FROM f::text`, w.partitions)
	if err != nil {
		return err
	}
	var live, folded *string
	_, err = pgx.ForEachRow(rows, []any{&live, &folded}, func() error {
		is, should, err := objects(live, folded)
		if err != nil {
			return err
		}
		w.found(Difference{KindReadModel, t.about(is, should), unlike(is, should), "billingctl replay " + projection})
		return nil
	})
	return err
}

func objects(live, folded *string) (is, should map[string]json.RawMessage, err error) {
	for text, into := range map[*string]*map[string]json.RawMessage{live: &is, folded: &should} {
		if text == nil {
			continue
		}
		if err := json.Unmarshal([]byte(*text), into); err != nil {
			return nil, nil, err
		}
	}
	return is, should, nil
}

// about names a row by its key.
func (t modelTable) about(is, should map[string]json.RawMessage) string {
	row := should
	if row == nil {
		row = is
	}
	name := t.name
	for _, column := range t.key {
		name += " " + strings.Trim(string(row[column]), `"`)
	}
	return name
}

// unlike says in what two rows differ.
func unlike(is, should map[string]json.RawMessage) string {
	switch {
	case is == nil:
		return "the row is missing"
	case should == nil:
		return "the log knows of no such row"
	}
	var parts []string
	for _, column := range slices.Sorted(maps.Keys(should)) {
		if string(is[column]) != string(should[column]) {
			parts = append(parts, fmt.Sprintf("%s is %s, the log makes %s", column, is[column], should[column]))
		}
	}
	if parts == nil {
		return "it is spelled otherwise than the log makes it"
	}
	return strings.Join(parts, "; ")
}
