package eventstore

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

const rawSQL = `INSERT INTO raw_events (stream, version, type, data, meta) VALUES ($1,$2,$3,$4,$5)`

const oneA = `
WITH key AS (
	INSERT INTO command_keys (key, command, fingerprint, stream_id, first_version, last_version)
	SELECT $2, $3, $4, $5, $6::int + 1, $6::int + 1 FROM pg_advisory_xact_lock(7310, $1::smallint)
	WHERE $6 = 0 OR EXISTS (SELECT FROM events WHERE stream_id = $5 AND stream_version = $6)
	ON CONFLICT (key) DO NOTHING
	RETURNING key
)
INSERT INTO events (partition, event_id, stream_id, stream_version, event_type, schema_version, sequence_key, payload, metadata, command_key, digest)
SELECT $1, $7, $5, $6 + 1, $8, $9, $10, $11, $12, key, $13 FROM key
RETURNING position, recorded_at`

// no speculative insert, position drawn here
const oneB = `
WITH key AS (
	INSERT INTO command_keys (key, command, fingerprint, stream_id, first_version, last_version)
	SELECT $2, $3, $4, $5, $6::int + 1, $6::int + 1 FROM pg_advisory_xact_lock(7310, $1::smallint)
	WHERE $6 = 0 OR EXISTS (SELECT FROM events WHERE stream_id = $5 AND stream_version = $6)
	RETURNING key
)
INSERT INTO events (partition, event_id, stream_id, stream_version, event_type, schema_version, sequence_key, payload, metadata, command_key, digest)
SELECT $1, $7, $5, $6 + 1, $8, $9, $10, $11, $12, key, $13 FROM key
RETURNING position, recorded_at`

const oneC = `
WITH key AS (
	INSERT INTO command_keys (key, command, fingerprint, stream_id, first_version, last_version)
	SELECT $2, $3, $4, $5, $6::int + 1, $6::int + 1 FROM pg_advisory_xact_lock(7310, $1::smallint)
	WHERE $6 = 0 OR EXISTS (SELECT FROM events WHERE stream_id = $5 AND stream_version = $6)
	ON CONFLICT (key) DO NOTHING
	RETURNING key
)
INSERT INTO events (partition, position, event_id, stream_id, stream_version, event_type, schema_version, sequence_key, payload, metadata, command_key, digest)
SELECT $1, nextval('events_position_seq'), $7, $5, $6 + 1, $8, $9, $10, $11, $12, key, $13 FROM key
RETURNING position, recorded_at`

func BenchmarkProbeSQL(b *testing.B) {
	ctx := context.Background()
	dsn := "postgres://postgres@127.0.0.1:55777/postgres?sslmode=disable"
	mk := func(mode string) *pgxpool.Pool {
		cfg, _ := pgxpool.ParseConfig(dsn)
		cfg.MaxConns = 1
		if mode != "" { cfg.ConnConfig.RuntimeParams["plan_cache_mode"] = mode }
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil { b.Fatal(err) }
		return pool
	}
	payload := `{"customer_id":"cust_1","billing_period":"2026-11","attempt":1,"key":"78add715f5445db3d7f8c24b1df859b6","amount_minor":5000,"currency":"usd","stripe_customer_id":"cus_123456789012","payment_method_id":"pm_1234567890123456789012345678"}`
	meta := `{"actor":"x","correlation":"asdasdasdasdasdasdasdasdasdasdasdasd","causation":"asdasdasdasdasdasdasdasdasdasdasdasd"}`
	setup := mk("")
	setup.Exec(ctx, `CREATE TABLE IF NOT EXISTS raw_events (position bigserial primary key, stream text, version int, type text, data json, meta json, recorded_at timestamptz default now(), unique(stream, version))`)
	setup.Exec(ctx, `TRUNCATE raw_events, events, command_keys`)
	for _, tab := range []string{"events_w", "events_noid"} {
		if _, err := setup.Exec(ctx, `DROP TABLE IF EXISTS `+tab+`; CREATE TABLE `+tab+` (LIKE events INCLUDING ALL)`); err != nil { b.Fatal(err) }
		if _, err := setup.Exec(ctx, `CREATE TRIGGER t BEFORE INSERT ON `+tab+` FOR EACH ROW WHEN (NEW.position IS NULL) EXECUTE FUNCTION events_draw_position()`); err != nil { b.Fatal(err) }
	}
	setup.Exec(ctx, `ALTER TABLE events_noid DROP CONSTRAINT events_noid_event_id_key`)
	setup.Close()
	fp := []byte("abcdabcdabcdabcdabcdabcdabcdabcd")
	type variant struct {
		name, mode, sql string
		args func(id string) []any
	}
	one := func(id string) []any { u, _ := uuid.NewV7(); return []any{int16(3), "k/" + id, "charge-billing", fp, "customer/" + id, int32(0), u, "charge.requested.v1", int16(1), id, payload, meta, fp} }
	alone := func(id string) []any {
		u, _ := uuid.NewV7()
		return []any{int16(3), "k/" + id, "charge-billing", fp, "customer/" + id, int32(0), int32(1), "", "", []byte(nil), id, meta, [][16]byte{u}, []string{"charge.requested.v1"}, []int16{1}, []string{payload}, [][]byte{fp}}
	}
	insA := func(id string) []any {
		u, _ := uuid.NewV7()
		return []any{[]int32{0}, []string{"customer/" + id}, []int32{0}, []int32{3}, []int32{1}, []string{"k/" + id}, []string{"x"}, [][]byte{fp}, []string{""}, []string{""}, [][]byte{nil},
			[]int32{0}, []int16{3}, [][16]byte{u}, []string{"customer/" + id}, []int32{1}, []string{"charge.requested.v1"}, []int16{1}, []string{id}, []string{payload}, []string{meta}, []string{"k/" + id}, [][]byte{fp}}
	}
	vs := []variant{
		{"raw", "", rawSQL, func(id string) []any { return []any{id, 1, "charge.requested.v1", payload, meta} }},
		{"alone", "", aloneSQL, alone}, 
		{"oneA", "", oneA, one}, {"oneC", "", oneC, one}, {"oneCw", "", strings.ReplaceAll(oneC, "INTO events ", "INTO events_w "), one}, {"oneCnoid", "", strings.ReplaceAll(oneC, "INTO events ", "INTO events_noid "), one},
		{"ins", "", insertSQL, insA}, {"ins-gen", "force_generic_plan", insertSQL, insA},
	}
	pools := map[string]*pgxpool.Pool{}
	for _, v := range vs { pools[v.name] = mk(v.mode) }
	server := map[string][]float64{}
	client := map[string][]float64{}
	wall := map[string][]float64{}
	n := 100
	for round := 0; round < 60; round++ {
		for _, v := range vs {
			pool := pools[v.name]
			var pid uint32
			if err := pool.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid); err != nil { b.Fatal(err) }
			t0, s0, c0 := time.Now(), cpu(pid), self()
			for i := 0; i < n; i++ {
				rows, err := pool.Query(ctx, v.sql, v.args(fmt.Sprintf("%s-%d-%d", v.name, round, i))...)
				if err != nil { b.Fatal(v.name, err) }
				k := 0
				for rows.Next() { k++ }
				if rows.Err() != nil { b.Fatal(v.name, rows.Err()) }
				if k != 1 && v.name != "raw" { b.Fatal(v.name, k) }
			}
			if round < 2 { continue }
			server[v.name] = append(server[v.name], float64((cpu(pid)-s0).Microseconds())/float64(n))
			client[v.name] = append(client[v.name], float64((self()-c0).Microseconds())/float64(n))
			wall[v.name] = append(wall[v.name], float64(time.Since(t0).Microseconds())/float64(n))
		}
	}
	med := func(x []float64) float64 { sort.Float64s(x); return x[len(x)/5] }
	for _, v := range vs {
		var g, c int
		pools[v.name].QueryRow(ctx, `select coalesce(sum(generic_plans),0), coalesce(sum(custom_plans),0) from pg_prepared_statements where statement not like '%pg_%_pid%' and statement not like '%generic_plans%'`).Scan(&g, &c)
		fmt.Printf("%-10s server %6.0f  client %6.0f  wall %6.0f min server %6.0f min wall %6.0f  generic %d custom %d\n", v.name, med(server[v.name]), med(client[v.name]), med(wall[v.name]), server[v.name][0], wall[v.name][0], g, c)
		pools[v.name].Close()
	}
	_ = os.Getenv
	_ = strings.Fields
}
