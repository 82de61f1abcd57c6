package tracking

import (
	"encoding/json"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore/pgtest"
)

// plan is a node of EXPLAIN (FORMAT JSON).
type plan struct {
	Node     string  `json:"Node Type"`
	Role     string  `json:"Parent Relationship"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Blocks   float64 `json:"Shared Hit Blocks"`
	Read     float64 `json:"Shared Read Blocks"`
	Plans    []plan  `json:"Plans"`
}

// givesEvents reports whether the rows of p are events.
func (p plan) givesEvents() bool {
	if p.Relation == "events" {
		return true
	}
	for _, child := range p.Plans {
		if child.Role != "SubPlan" && child.givesEvents() {
			return true
		}
	}
	return false
}

// check reports what must not be done to a log of any size.
func (p plan) check(t *testing.T) {
	t.Helper()
	if p.Relation == "events" && strings.HasPrefix(p.Node, "Seq") || strings.HasPrefix(p.Index, "events_") && p.Index != "events_pkey" {
		t.Errorf("%s on events, index %q", p.Node, p.Index)
	}
	if strings.Contains(p.Node, "Sort") && p.givesEvents() {
		t.Errorf("%s of events", p.Node)
	}
	for _, child := range p.Plans {
		child.check(t)
	}
}

// What is asked of the log is served by its primary key, page for page, where
// a token is far behind and where it is not, in a partition that is full and
// in one that is empty, with statistics and without, planned for its
// parameters and for any; and it reads no more of a log of a hundred thousand
// events (-tracking.rows=1000000: a million) than of one of ten thousand.
func TestPlans(t *testing.T) {
	t.Parallel()
	for rows := 10_000; rows <= *planRows; rows *= 10 {
		for _, analyzed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/analyzed=%v", rows, analyzed), func(t *testing.T) {
				t.Parallel()
				testPlans(t, rows, analyzed)
			})
		}
	}
}

var planRows = flag.Int("tracking.rows", 100_000, "the longest log of TestPlans, from 10,000 on in tenfold steps")

func testPlans(t *testing.T, rows int, analyzed bool) {
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`ALTER TABLE events SET (autovacuum_enabled = false)`)
	// Partitions 0 to 59 are full, 60 has one old event, the rest are empty.
	exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload) VALUES (60, 'old', 1, 'a', 'old', '{}')`)
	exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload)
		SELECT c % 60, 'customer/' || c, v, (array['a', 'b', 'c'])[1 + v % 3], c, '{}' FROM generate_series(1, 100) AS v, generate_series(1, ` + strconv.Itoa(rows/100) + `) AS c`)
	exec(`INSERT INTO processor_tokens (processor, partition) SELECT 'behind', p FROM generate_series(0, 63) AS p`)
	exec(`INSERT INTO processor_tokens (processor, partition, position) SELECT 'abreast', p, ` + strconv.Itoa(rows-100) + ` FROM generate_series(0, 63) AS p`)
	if analyzed {
		exec(`ANALYZE`)
	}
	prepare := func() {
		exec(`PREPARE claim (text, smallint[], smallint[], bigint, text[], text) AS ` + claimSQL)
		exec(`PREPARE ordered_claim (text, boolean, text[], text) AS ` + orderedClaimSQL)
		exec(`PREPARE newest (smallint[]) AS ` + newestSQL)
		exec(`PREPARE page (smallint[], bigint[], bigint[], int[], text[]) AS ` + pageSQL)
		exec(`PREPARE scan (text[], smallint[]) AS ` + scanSQL)
		exec(`PREPARE status (text[]) AS ` + statusSQL)
	}
	prepare()
	const some, all = `'{0,17,60,63}'`, `'{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,60,61,62,63}'`
	newest := strconv.Itoa(rows - 10)
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		exec(`SET plan_cache_mode = ` + mode)
		for _, c := range []struct {
			statement string
			blocks    float64 // at most
		}{
			{`claim('behind', ` + all + `, '{}', 1048576, '{}', '60s')`, 1500},
			{`claim('behind', ` + all + `, '{0,1,60}', 1048576, '{b}', '60s')`, 1500},
			{`claim('abreast', ` + all + `, ` + all + `, 1048576, '{}', '60s')`, 1500},
			{`claim('abreast', ` + some + `, '{}', 1048576, '{b,c}', '60s')`, 500},
			{`ordered_claim('behind', true, '{}', '60s')`, 3000},
			{`ordered_claim('behind', false, '{b}', '60s')`, 3000},
			{`ordered_claim('abreast', false, '{b,c}', '60s')`, 3000},
			{`newest(` + all + `)`, 300},
			{`page(` + some + `, '{0,` + strconv.Itoa(rows/2) + `,0,0}', '{10000000,10000000,10000000,10000000}', '{50,50,50,50}', '{}')`, 500},
			{`page(` + some + `, '{` + newest + `,` + newest + `,0,0}', '{10000000,10000000,10000000,10000000}', '{1,1,1,1}', '{a,b}')`, 100},
			{`scan('{behind,abreast}', ` + all + `)`, 600},
			{`status('{abreast}')`, 2000},
		} {
			t.Run(mode+"/"+c.statement, func(t *testing.T) {
				var text string
				if err := conn.QueryRow(ctx, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE `+c.statement).Scan(&text); err != nil {
					t.Fatal(err)
				}
				var explained []struct{ Plan plan }
				if err := json.Unmarshal([]byte(text), &explained); err != nil {
					t.Fatal(err)
				}
				p := explained[0].Plan
				p.check(t)
				if n := p.Blocks + p.Read; n > c.blocks {
					t.Errorf("%v blocks were read, at most %v are to be", n, c.blocks)
				}
				if t.Failed() {
					t.Log(text)
				}
			})
		}
	}

	// Planned once, not each time: planning would take longer than running.
	exec(`DEALLOCATE ALL`)
	prepare()
	exec(`SET plan_cache_mode = auto`)
	for range 7 {
		exec(`EXECUTE claim('abreast', ` + some + `, '{}', 1048576, '{b}', '60s')`)
		exec(`EXECUTE ordered_claim('abreast', false, '{b}', '60s')`)
		exec(`EXECUTE newest(` + some + `)`)
		exec(`EXECUTE page('{17}', '{50000}', '{10000000}', '{50}', '{b}')`)
		exec(`EXECUTE scan('{behind}', ` + some + `)`)
	}
	var anew string
	if err := conn.QueryRow(ctx, `SELECT coalesce(string_agg(name, ' '), '') FROM pg_prepared_statements WHERE name <> 'status' AND generic_plans = 0`).Scan(&anew); err != nil {
		t.Fatal(err)
	}
	if anew != "" {
		t.Errorf("planned anew each time: %s", anew)
	}
}
