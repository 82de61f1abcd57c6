package eventstore

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
)

func cpu(pid uint32) time.Duration {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	f := strings.Fields(string(b))
	if len(f) == 0 { return 0 }
	n, _ := strconv.ParseInt(f[0], 10, 64)
	return time.Duration(n)
}
func self() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func BenchmarkProbe(b *testing.B) {
	dsn := pgtest.DSN(b)
	ctx := context.Background()
	payload := `{"customer_id":"cust_1","billing_period":"2026-11","attempt":1,"key":"78add715f5445db3d7f8c24b1df859b6","amount_minor":5000,"currency":"usd","stripe_customer_id":"cus_123456789012","payment_method_id":"pm_1234567890123456789012345678"}`
	run := 0
	n := 2000
	type res struct{ wall, server, client time.Duration }
	totals := map[string]res{}
	cases := []string{"raw", "auto", "force_generic_plan"}
	if m := os.Getenv("PROBE"); m != "" { cases = strings.Split(m, ",") }
	pools := map[string]*pgxpool.Pool{}
	for _, c := range cases {
		cfg, _ := pgxpool.ParseConfig(dsn)
		cfg.MaxConns = 1
		if c != "raw" { cfg.ConnConfig.RuntimeParams["plan_cache_mode"] = c }
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil { b.Fatal(err) }
		defer pool.Close()
		pools[c] = pool
	}
	pools["raw"].Exec(ctx, `CREATE TABLE IF NOT EXISTS raw_events (position bigserial primary key, stream text, version int, type text, data json, meta json, recorded_at timestamptz default now(), unique(stream, version))`)
	for round := 0; round < 6; round++ {
		for _, c := range cases {
			pool := pools[c]
			s := New(pool, NewCodec(domain.Events()), slog.Default())
			var pid uint32
			pool.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid)
			run++
			t0, s0, c0 := time.Now(), cpu(pid), self()
			for i := 0; i < n; i++ {
				id := domain.CustomerID(fmt.Sprintf("c%d-%d", run, i))
				var err error
				if c == "raw" {
					_, err = pool.Exec(ctx, `INSERT INTO raw_events (stream, version, type, data, meta) VALUES ($1,1,'charge.requested.v1',$2,$3)`, string(id), payload, `{"actor":"x","correlation":"asdasdasdasdasdasdasdasdasdasdasdasd","causation":"asdasdasdasdasdasdasdasdasdasdasdasd"}`)
				} else {
					_, err = s.Append(ctx, Batch{Stream: id.Stream(), Key: domain.Key("k/" + string(id)), Command: "x", Fingerprint: []byte("abcdabcdabcdabcdabcdabcdabcdabcd"),
						Meta:   Meta{Actor: "x", Correlation: "asdasdasdasdasdasdasdasdasdasdasdasd", Causation: "asdasdasdasdasdasdasdasdasdasdasdasd"},
						Events: []domain.Event{domain.ChargeRequested{CustomerID: id, BillingPeriod: domain.PeriodOf(domain.Monthly, 2026, 11), Attempt: 1, Key: "78add715f5445db3d7f8c24b1df859b6", Money: domain.Money{5000, "usd"}, StripeCustomerID: "cus_123456789012", PaymentMethodID: "pm_1234567890123456789012345678"}}})
				}
				if err != nil { b.Fatal(err) }
			}
			if round == 0 { continue }
			r := totals[c]
			r.wall += time.Since(t0); r.server += cpu(pid) - s0; r.client += self() - c0
			totals[c] = r
		}
	}
	for _, c := range cases {
		r := totals[c]
		k := time.Duration(5 * n)
		fmt.Printf("%-24s wall %v server %v client %v\n", c, r.wall/k, r.server/k, r.client/k)
	}
}
