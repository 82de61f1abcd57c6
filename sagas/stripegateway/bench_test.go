package stripegateway

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// BenchmarkTake measures a confirm against a server that answers at once, in
// this process: client and server together.
func BenchmarkTake(b *testing.B) {
	o := anOrder()
	body := anIntent().String()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, body)
	}))
	defer s.Close()
	g, err := New(Config{BaseURL: s.URL, Key: "vk_bench", Log: slog.New(slog.DiscardHandler), Timeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	reportCPU(b)
	for b.Loop() {
		if out := g.Take(b.Context(), o); out.Class != domain.Paid {
			b.Fatal(out)
		}
	}
}

// BenchmarkTakeAlone leaves the network out: what this package and stripe-go
// cost a call.
func BenchmarkTakeAlone(b *testing.B) {
	g, o := instantGateway(b, anIntent().String()), anOrder()
	reportCPU(b)
	for b.Loop() {
		if out := g.Take(b.Context(), o); out.Class != domain.Paid {
			b.Fatal(out)
		}
	}
}

func BenchmarkPrepareAlone(b *testing.B) {
	g, o := instantGateway(b, anIntent().open().String()), anOrder()
	reportCPU(b)
	for b.Loop() {
		if p := g.Prepare(b.Context(), o); p.IntentID == "" {
			b.Fatal(p)
		}
	}
}

// reportCPU reports the CPU time an iteration, which a busy machine changes
// less than the wall clock.
func reportCPU(b *testing.B) {
	b.ReportAllocs()
	var before syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		var after syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
			b.Fatal(err)
		}
		spent := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		b.ReportMetric(float64(spent)/float64(b.N), "cpu-ns/op")
	})
}

func instantGateway(b *testing.B, body string) *Gateway {
	b.Helper()
	g, err := New(Config{BaseURL: "http://127.0.0.1:1", Key: "vk_bench", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	g.client.Transport.(*wire).next = instant(body)
	return g
}

// instant answers every request with a body.
type instant string

func (s instant) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Request-Id": {"req_1"}},
		Body: io.NopCloser(strings.NewReader(string(s))), Request: r,
	}, nil
}

// BenchmarkListAlone reads a page of a hundred charges, of the size that Stripe
// gives them, without the network.
func BenchmarkListAlone(b *testing.B) {
	charges := make([]object, 100)
	for i := range charges {
		charges[i] = aCharge().with("payment_method_details", object{"card": object{"unread": strings.Repeat(`"text" {} `, 60)}},
			"billing_details", object{"address": object{"city": nil, "country": nil, "line1": nil, "line2": nil, "postal_code": nil, "state": nil}, "email": nil})
		for n := range 40 {
			charges[i][fmt.Sprint("unread_member_", n)] = []any{nil, false, 0, "some text"}[n%4]
		}
	}
	text := page(false, charges...)
	g := instantGateway(b, text)
	b.SetBytes(int64(len(text)))
	reportCPU(b)
	for b.Loop() {
		if p, err := g.List(b.Context(), sagas.Listing{Resource: "charges", PageSize: 100}); err != nil || len(p.Found) != 100 {
			b.Fatal(p, err)
		}
	}
}
