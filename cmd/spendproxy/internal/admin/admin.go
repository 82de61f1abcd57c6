package admin

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
)

// Prefix is where the API is. Whatever begins with it is answered by [New]'s
// handler and is never forwarded.
const Prefix = "/admin/v1/"

// Ledger is what the API needs of the ledger.
type Ledger interface {
	Issue(ctx context.Context, i ledger.Issue) (key ledger.VaultKey, secret string, existed bool, err error)
	Keys(ctx context.Context, f ledger.KeyFilter) ([]ledger.VaultKey, error)
	Key(ctx context.Context, id string) (ledger.VaultKey, error)
	Raise(ctx context.Context, r ledger.Raise) (ledger.VaultKey, error)
	Raises(ctx context.Context, id string) ([]ledger.Raised, error)
	Extend(ctx context.Context, id string, until time.Time, reason, by string) (ledger.VaultKey, error)
	Rotate(ctx context.Context, id string, grace time.Duration, by string) (secret string, err error)
	Revoke(ctx context.Context, id, reason, by string) error
	Register(ctx context.Context, keyID string, entries iter.Seq2[ledger.Entry, error]) (ledger.Registered, error)
	Calls(ctx context.Context, f ledger.CallFilter) ([]ledger.Recorded, string, error)
	Books(ctx context.Context, f ledger.BooksFilter) ([]ledger.Sum, error)
	Release(ctx context.Context, subject, reason, by string) error
	Clock(ctx context.Context) (time.Time, error)
}

var _ Ledger = (*ledger.Ledger)(nil)

// uploads is how many manifests are taken at a time: each holds one of the
// ledger's connections, which money calls need too.
const uploads = 2

type server struct {
	ledger  Ledger
	tokens  Tokens
	log     *slog.Logger
	limits  limits
	uploads chan struct{}
}

// New is the API's handler. It answers everything itself, also what is not
// under [Prefix], and is safe for concurrent use.
func New(l Ledger, t Tokens, log *slog.Logger) http.Handler {
	return &server{ledger: l, tokens: t, log: log, limits: patience, uploads: make(chan struct{}, uploads)}
}

// Owns reports whether a request is for the admin API, by its target as it came
// over the wire, so that no other spelling of a path leads here.
func Owns(r *http.Request) bool { return strings.HasPrefix(r.RequestURI, "/admin/") }

// ServeHTTP lets the caller in, and only then looks at what is asked for: to
// others every path is the same.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set(requestIDHeader, "req_"+rand.Text())
	defer func() {
		if v := recover(); v != nil {
			s.panicked(w, r, v)
		}
	}()
	if err := s.serve(w, r); err != nil {
		s.fail(w, r, err)
	}
}

// requestIDHeader names a request in its answer, in errors and in the log.
const requestIDHeader = "X-Request-Id"

// panicked answers for a part that panicked. The value may quote a request: its
// type and the stack tell enough.
func (s *server) panicked(w http.ResponseWriter, r *http.Request, v any) {
	what := fmt.Sprintf("%T", v)
	if e, ok := v.(runtime.Error); ok {
		what = e.Error()
	}
	s.log.ErrorContext(r.Context(), "a request of the admin API panicked", slog.String("request_id", w.Header().Get(requestIDHeader)),
		slog.String("panic", what), slog.String("stack", string(debug.Stack())))
	s.fail(w, r, &problem{status: http.StatusInternalServerError, code: "internal", message: "the spend proxy has failed; its log says more under the request id", close: true})
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) error {
	who, err := s.tokens.caller(r.Header)
	if err != nil {
		return err
	}
	matched, err := match(r.Method, r.RequestURI)
	if err != nil {
		return err
	}
	if matched.scope == adminOnly && !who.admin {
		return refused("not_permitted", "the service token may not do this")
	}
	answer, err := matched.serve(s, call{r: r, w: w, who: who, name: matched.name, query: matched.query})
	if err != nil {
		return err
	}
	writeJSON(w, answer.status, answer.body)
	return nil
}
