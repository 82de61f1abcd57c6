package eventstore

import (
	"encoding/json"
	"flag"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore/pgtest"
)

var growTo = flag.Int("eventstore.rows", 100_000, "the longest log of TestReadingDoesNotGrow, from 10,000 on in tenfold steps")

// planNode is a node of EXPLAIN (FORMAT JSON).
type planNode struct {
	Node  string     `json:"Node Type"`
	Index string     `json:"Index Name"`
	Hit   float64    `json:"Shared Hit Blocks"`
	Read  float64    `json:"Shared Read Blocks"`
	Plans []planNode `json:"Plans"`
}

// shape is the plan without its figures.
func (n planNode) shape() string {
	var below []string
	for _, child := range n.Plans {
		below = append(below, child.shape())
	}
	return n.Node + " " + n.Index + "(" + strings.Join(below, ", ") + ")"
}

// What an event costs does not depend on how long the log is: each statement that
// reads it, for decisions, the feed, verify, export and replay, has one plan in the
// service's sessions at ten thousand rows and at a hundred thousand (-eventstore.rows=1000000: a
// million), without a sort or a scan of the table, and reads as many blocks for a
// page, but for an index that is a level deeper.
func TestReadingDoesNotGrow(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	config, err := pgx.ParseConfig(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range KeyedPlans() {
		config.RuntimeParams[name] = value
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // what is prepared is prepared by the test
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	statements := []struct{ name, types, sql, args string }{
		{"load", "text, int", loadSQL, "'customer/17', 0"},
		{"load_many", "", loadManySQL, "'{customer/17,customer/900}', '{0,5}'"},
		{"read", "bigint, int", readSQL, "5000, 100"},
		{"partition", "smallint, bigint, int", partitionSQL, "17, 5000, 100"},
		{"page", "smallint, bigint, bigint, text[], int", pageSQL, "17, 5000, 9223372036854775807, '{b}', 100"},
		{"newest", "", newestSQL, ""},
	}
	type cost struct {
		shape  string
		blocks float64
	}
	first := map[string]cost{}
	exec(`ALTER TABLE events SET (autovacuum_enabled = false)`)
	rows := 0
	for size := 10_000; size <= *growTo; size *= 10 {
		// A customer has ten facts, and facts of a thousand customers take turns.
		exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload)
			SELECT c % 60, 'customer/' || c, 1 + n / 1000 % 10, (array['a', 'b', 'c'])[1 + n % 3], c, '{}'
			FROM (SELECT n, n / 10000 * 1000 + n % 1000 AS c FROM generate_series($1::int, $2::int - 1) AS n) AS facts ORDER BY n`, rows, size)
		rows = size
		exec(`VACUUM (ANALYZE) events`)
		exec(`DEALLOCATE ALL`)
		for _, s := range statements {
			types, args := "", ""
			if s.types != "" {
				types = "(" + s.types + ")"
			}
			if s.args != "" {
				args = "(" + s.args + ")"
			}
			exec("PREPARE " + s.name + types + " AS " + s.sql)
			var text string
			if err := conn.QueryRow(ctx, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE `+s.name+args).Scan(&text); err != nil {
				t.Fatal(err)
			}
			var explained []struct{ Plan planNode }
			if err := json.Unmarshal([]byte(text), &explained); err != nil {
				t.Fatal(err)
			}
			plan := explained[0].Plan
			now := cost{plan.shape(), plan.Hit + plan.Read}
			if strings.Contains(now.shape, "Seq Scan") || strings.Contains(now.shape, "Sort") {
				t.Errorf("%s, %d rows: %s", s.name, size, now.shape)
			}
			before, known := first[s.name]
			if !known {
				first[s.name] = now
				continue
			}
			if now.shape != before.shape {
				t.Errorf("%s: at %d rows %s, before %s", s.name, size, now.shape, before.shape)
			}
			if limit := 2*before.blocks + 20; now.blocks > limit {
				t.Errorf("%s: %v blocks at %d rows, %v at 10,000", s.name, now.blocks, size, before.blocks)
			}
		}
	}
	if len(first) != len(statements) {
		t.Errorf("plans of %d statements", len(first))
	}
}
