package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/projections"
)

// BenchmarkImport registers and activates 1,000 customers in one batch, on a
// server as durable as the service's own.
func BenchmarkImport(b *testing.B) {
	const n = 1000
	pool := pgtest.Pool(b)
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), slog.New(slog.DiscardHandler))
	defer store.Close()
	s, err := New(Deps{
		Dispatcher: commands.NewDispatcher(store), Reads: projections.NewReads(store),
		Clock:   func(context.Context) (time.Time, error) { return time.Now(), nil },
		Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	}, Limits{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	server := httptest.NewServer(s)
	defer server.Close()

	rounds := 0
	for b.Loop() {
		rounds++
		body := strings.ReplaceAll(customers(n), `"customer_id":"c`, `"customer_id":"r`+strconv.Itoa(rounds)+"-")
		res, err := client.Post(server.URL+"/v1/commands:batch", ndjson, strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		answer, err := io.ReadAll(res.Body)
		res.Body.Close()
		if recorded := strings.Count(string(answer), `"replayed":false`); err != nil || res.StatusCode != http.StatusOK || recorded != 2*n {
			b.Fatalf("%d of %d recorded: %d, %v", recorded, 2*n, res.StatusCode, err)
		}
	}
	b.ReportMetric(float64(store.Commits())/float64(rounds), "commits/op")
	b.ReportMetric(float64(2*n*rounds)/b.Elapsed().Seconds(), "commands/s")
}
