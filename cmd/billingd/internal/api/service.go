package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/billonce/billonce/migrations"
)

// Check is a condition of readiness. Run returns why it is not met, in words
// that everybody may read, or nil.
type Check struct {
	Name string
	Run  func(context.Context) error
}

// Readiness is whether this instance should be given work, and why not.
type Readiness struct {
	Ready  bool          `json:"ready"`
	Checks []CheckResult `json:"checks"`
}

// CheckResult is what became of a check.
type CheckResult struct {
	Name   string `json:"name" example:"database"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty" doc:"Why it is not met."`
}

// checkTime bounds a check: one that does not answer is not met.
const checkTime = 3 * time.Second

func (s *Server) registerService(registry *prometheus.Registry) {
	s.registerHealth()
	ready := public("readiness", http.MethodGet, "/readyz", tagService, "See whether the instance should be given work")
	ready.Responses = map[string]*huma.Response{
		"503": {Description: "It should not, for the reasons given.", Content: map[string]*huma.MediaType{
			"application/json": {Schema: &huma.Schema{Ref: "#/components/schemas/Readiness"}},
		}},
		"default": s.problemResponse(),
	}
	type answer struct {
		Status int
		Body   Readiness
	}
	huma.Register(s.huma, ready, func(ctx context.Context, _ *struct{}) (*answer, error) {
		r := s.readiness(ctx)
		if !r.Ready {
			return &answer{http.StatusServiceUnavailable, r}, nil
		}
		return &answer{http.StatusOK, r}, nil
	})

	text := func(op huma.Operation, contentType string, h http.Handler) {
		op.Responses = map[string]*huma.Response{"200": {Description: "As text.", Content: map[string]*huma.MediaType{
			contentType: {Schema: &huma.Schema{Type: huma.TypeString}},
		}}, "default": s.problemResponse()}
		s.handle(op, func(w http.ResponseWriter, r *http.Request) error {
			h.ServeHTTP(w, r)
			return nil
		})
	}
	text(public("metrics", http.MethodGet, "/metrics", tagService, "Read the metrics, for Prometheus"), "text/plain",
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	index := public("index", http.MethodGet, "/{$}", tagService, "")
	index.Hidden = true
	s.handle(index, func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprint(w, s.index())
		return nil
	})
}

// registerDocument serves the OpenAPI document of everything registered. It is
// written when it is first asked for: most services never are, and it takes a
// good part of a start.
func (s *Server) registerDocument() {
	document := sync.OnceValues(s.document)
	op := public("openapi", http.MethodGet, "/openapi.json", tagService, "")
	op.Hidden = true
	s.handle(op, func(w http.ResponseWriter, _ *http.Request) error {
		text, err := document()
		if err != nil {
			return fmt.Errorf("write the OpenAPI document: %w", err)
		}
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(text)
		return nil
	})
}

// index lists the addresses for people.
func (s *Server) index() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Billonce %s\n\nBills every customer exactly once per billing period.\n\n", s.huma.OpenAPI().Info.Version)
	for _, pattern := range s.mux.patterns {
		method, path, _ := strings.Cut(pattern, " ")
		item := s.huma.OpenAPI().Paths[path]
		if item == nil {
			continue
		}
		op := item.Get
		if method == http.MethodPost {
			op = item.Post
		}
		if op != nil {
			fmt.Fprintf(&b, "%-5s %-46s %s\n", method, path, op.Summary)
		}
	}
	fmt.Fprintf(&b, "%-5s %-46s %s\n", "GET", "/openapi.json", "All of it, for programs")
	return b.String()
}

// readiness runs all checks at once.
func (s *Server) readiness(ctx context.Context) Readiness {
	checks := append([]Check{{"database", s.checkDatabase}, {"processors", s.checkProcessors}}, s.ready...)
	r := Readiness{Ready: true, Checks: make([]CheckResult, len(checks))}
	var running sync.WaitGroup
	for i, c := range checks {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, checkTime)
			defer cancel()
			r.Checks[i] = CheckResult{Name: c.Name, OK: true}
			if err := c.Run(ctx); err != nil {
				r.Checks[i].OK, r.Checks[i].Reason = false, err.Error()
			}
		})
	}
	running.Wait()
	for _, c := range r.Checks {
		r.Ready = r.Ready && c.OK
	}
	return r
}

// Why the API's own checks are not met.
var (
	errUnreachable  = errors.New("the database does not answer")
	errReadOnly     = errors.New("the database takes no writes")
	errNotMigrated  = errors.New("the database lacks the schema of this version")
	errNoProcessors = errors.New("no processor has run yet")
)

// checkDatabase asks whether the database takes writes and has the schema.
func (s *Server) checkDatabase(ctx context.Context) error {
	var readOnly bool
	err := s.store.Pool().QueryRow(ctx, `SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'`).Scan(&readOnly)
	switch {
	case err != nil:
		return errUnreachable // the driver's own words name users and hosts
	case readOnly:
		return errReadOnly
	}
	migrated, err := migrations.Applied(ctx, s.store.Pool())
	switch {
	case err != nil:
		return errUnreachable
	case !migrated:
		return errNotMigrated
	}
	return nil
}

// checkProcessors asks whether every processor has begun and is near the end of
// the log. One that an operator has paused, or lets run to a position, is no
// reason to send callers away.
func (s *Server) checkProcessors(ctx context.Context) error {
	all, err := s.processors(ctx)
	if err != nil {
		return errUnreachable
	}
	missing := map[string]bool{}
	for _, name := range s.running {
		missing[name] = true
	}
	var reasons []string
	for _, p := range all {
		if len(s.running) > 0 && !missing[p.Processor] {
			continue
		}
		delete(missing, p.Processor)
		if lag := time.Duration(p.BehindSeconds * float64(time.Second)); lag > s.limits.Lag && !p.Paused && p.StopAt == 0 {
			reasons = append(reasons, fmt.Sprintf("%s is %d events and %s behind", p.Processor, p.BehindEvents, lag.Round(time.Second)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		reasons = append(reasons, name+" has not begun")
	}
	switch {
	case len(reasons) > 0:
		return errors.New(strings.Join(reasons, "; "))
	case len(all) == 0:
		return errNoProcessors
	}
	return nil
}
