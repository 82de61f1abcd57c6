package rebuild

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Diff says in what a table's live rows differ from the rebuilt ones, in the
// partitions that were rebuilt.
type Diff struct {
	Table       string    `json:"table"`
	OnlyFormer  int64     `json:"only_former"`  // rows that only the live table had
	OnlyRebuilt int64     `json:"only_rebuilt"` // rows that only the rebuilt one has
	Different   int64     `json:"different"`    // rows of one key and unequal columns
	Examples    []Example `json:"examples,omitempty"`
}

// Rows is how many rows differ.
func (d Diff) Rows() int64 { return d.OnlyFormer + d.OnlyRebuilt + d.Different }

// Example is a row that differs.
type Example struct {
	Key  string   `json:"key"`
	Says []string `json:"says"` // one a column, or that there is no such row
}

// differing is the temporary table of the rows that differ: one row a key, its
// live row and the one beside it.
const differing = "pg_temp.rebuild_differing"

// compare fills differing and counts what is in it. Rows are compared as text,
// byte for byte.
func (r *rebuild) compare(ctx context.Context, tx pgx.Tx, t table) (Diff, error) {
	d := Diff{Table: t.name}
	for _, sql := range []string{
		"DROP TABLE IF EXISTS " + differing,
		"CREATE TEMPORARY TABLE rebuild_differing (live " + t.live + ", beside " + t.on(r.side) + ") ON COMMIT DROP",
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return d, fmt.Errorf("compare %s: %w", t.name, err)
		}
	}
	// A row whose partition is none at all belongs to whoever rebuilds partition 0.
	if _, err := tx.Exec(ctx, "INSERT INTO "+differing+" SELECT l, b FROM "+t.live+" l FULL JOIN "+t.on(r.side)+" b USING ("+strings.Join(t.key, ", ")+`)
		WHERE l::text IS DISTINCT FROM b::text
		AND (b.partition IS NOT NULL OR CASE WHEN l.partition BETWEEN 0 AND 63 THEN l.partition ELSE 0 END = ANY ($1))`, r.scope); err != nil {
		return d, fmt.Errorf("compare %s: %w", t.name, err)
	}
	// A row is there if its partition is: IS NULL of a whole row asks for all columns.
	if err := tx.QueryRow(ctx, `SELECT count(*) FILTER (WHERE (beside).partition IS NULL), count(*) FILTER (WHERE (live).partition IS NULL),
			count(*) FILTER (WHERE (live).partition IS NOT NULL AND (beside).partition IS NOT NULL) FROM `+differing).
		Scan(&d.OnlyFormer, &d.OnlyRebuilt, &d.Different); err != nil {
		return d, fmt.Errorf("compare %s: %w", t.name, err)
	}
	var err error
	d.Examples, err = r.examples(ctx, tx, t)
	return d, err
}

func (r *rebuild) examples(ctx context.Context, tx pgx.Tx, t table) (examples []Example, err error) {
	keys := make([]string, len(t.key))
	for i, column := range t.key {
		keys[i] = "coalesce((live)." + column + ", (beside)." + column + ")"
	}
	rows, err := tx.Query(ctx, "SELECT concat_ws(' ', "+strings.Join(keys, ", ")+`),
			CASE WHEN (live).partition IS NOT NULL THEN to_json(live) END, CASE WHEN (beside).partition IS NOT NULL THEN to_json(beside) END
		FROM `+differing+" ORDER BY "+strings.Join(keys, ", ")+" LIMIT $1", r.options.Examples)
	if err != nil {
		return nil, fmt.Errorf("read differing rows of %s: %w", t.name, err)
	}
	var key string
	var live, beside map[string]json.RawMessage
	_, err = pgx.ForEachRow(rows, []any{&key, &live, &beside}, func() error {
		examples = append(examples, Example{key, unlike(live, beside)})
		live, beside = nil, nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read differing rows of %s: %w", t.name, err)
	}
	return examples, nil
}

func unlike(live, beside map[string]json.RawMessage) (says []string) {
	switch {
	case live == nil:
		return []string{"no such row so far"}
	case beside == nil:
		return []string{"no such row any more"}
	}
	for _, column := range slices.Sorted(maps.Keys(beside)) {
		if was, is := string(live[column]), string(beside[column]); was != is {
			says = append(says, fmt.Sprintf("%s: %s becomes %s", column, was, is))
		}
	}
	return says
}

// exchange gives the rows in differing to the other side each.
func (r *rebuild) exchange(ctx context.Context, tx pgx.Tx, t table) error {
	for _, move := range []struct{ table, gives, takes string }{{t.live, "live", "beside"}, {t.on(r.side), "beside", "live"}} {
		var same []string
		for _, column := range t.key {
			same = append(same, "t."+column+" = (d."+move.gives+")."+column)
		}
		for _, sql := range []string{
			"DELETE FROM " + move.table + " t USING " + differing + " d WHERE " + strings.Join(same, " AND "),
			"INSERT INTO " + move.table + " SELECT (d." + move.takes + ").* FROM " + differing + " d WHERE (d." + move.takes + ").partition IS NOT NULL",
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return fmt.Errorf("exchange rows of %s: %w", t.name, err)
			}
		}
	}
	return nil
}
