package sim_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// BenchmarkConfirm is a bill as the stand-in sees it, two POSTs over loopback: an
// intent is created, then confirmed. cpu-µs/request counts client and server of
// this process together; the in-memory row without sockets shows the handler
// alone.
func BenchmarkConfirm(b *testing.B) {
	for _, data := range []string{"memory", "journal"} {
		b.Run(data+"/loopback", func(b *testing.B) {
			server, _ := start(b, options(b, data))
			transport := &http.Transport{MaxIdleConnsPerHost: 64}
			defer transport.CloseIdleConnections()
			benchmarkBills(b, func(r *http.Request) (int, string) {
				r.URL.Scheme, r.URL.Host = "http", strings.TrimPrefix(server.APIURL, "http://")
				resp, err := transport.RoundTrip(r)
				if err != nil {
					b.Error(err)
					return 0, ""
				}
				defer resp.Body.Close()
				body, _ := io.ReadAll(resp.Body)
				return resp.StatusCode, string(body)
			})
		})
		b.Run(data+"/handler", func(b *testing.B) {
			s, err := sim.New(options(b, data))
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			api := s.API()
			benchmarkBills(b, func(r *http.Request) (int, string) {
				w := &recorder{header: make(http.Header, 8)}
				api.ServeHTTP(w, r)
				return w.status, string(w.body)
			})
		})
	}
}

func options(b *testing.B, data string) sim.Options {
	if data == "memory" {
		return sim.Options{}
	}
	return sim.Options{Data: filepath.Join(b.TempDir(), "stripesim.journal")}
}

func benchmarkBills(b *testing.B, do func(*http.Request) (int, string)) {
	post := func(path, key, form string) string {
		r, _ := http.NewRequest("POST", path, io.NopCloser(strings.NewReader(form)))
		r.Header.Set("Authorization", "Bearer sk_test_123")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Idempotency-Key", key)
		status, body := do(r)
		if status != 200 {
			b.Errorf("POST %s: %d %s", path, status, body)
		}
		return body
	}
	const form = "amount=5000&currency=usd&customer=cus_123&metadata[customer_id]=cust_123&metadata[billing_period]=2026-11&metadata[billing_key]=78add715f5445db3d7f8c24b1df859b6&payment_method_types[0]=card"
	before := cpu()
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		key := fmt.Sprintf("78add715f5445db3d7f8c24b1df8%06d", n)
		body := post("/v1/payment_intents", key+"-intent", form)
		_, rest, _ := strings.Cut(body, `"id":"`)
		id, _, _ := strings.Cut(rest, `"`)
		post("/v1/payment_intents/"+id+"/confirm", key, "off_session=true&payment_method=pm_card_visa")
	}
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(2*n), "cpu-µs/request")
}

type recorder struct {
	header http.Header
	status int
	body   []byte
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { r.body = append(r.body, b...); return len(b), nil }

// cpu is the time this process has spent, user and system.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
