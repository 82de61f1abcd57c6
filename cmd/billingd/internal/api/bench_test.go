package api

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"context"

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
	body := customers(1000)
	for b.Loop() {
		b.StopTimer()
		importOnce(b, body)
	}
}

func importOnce(b *testing.B, body string) {
	pool := pgtest.Pool(b)
	if _, err := pool.Exec(b.Context(), `TRUNCATE events, command_keys, request_keys`); err != nil {
		b.Fatal(err)
	}
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
	b.StartTimer()
	res, err := http.Post(server.URL+"/v1/commands:batch", ndjson, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	answer, err := io.ReadAll(res.Body)
	b.StopTimer()
	res.Body.Close()
	if err != nil || strings.Count(string(answer), `"replayed":false`) != 2000 {
		b.Fatalf("%v; %d recorded", err, strings.Count(string(answer), `"replayed":false`))
	}
	b.ReportMetric(float64(store.Commits()), "commits/op")
	b.StartTimer()
}
