package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/spendproxy/internal/admin"
	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/eventstore/pgtest"
)

const (
	adminToken   = "admin-token-of-a-test"
	serviceToken = "service-token-of-a-test"
)

// instance is the admin API on a ledger and a database of its own.
type instance struct {
	t      *testing.T
	pool   *pgxpool.Pool
	ledger *ledger.Ledger
	url    string
	log    *logged
}

// logged is a log that tests can read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func start(t *testing.T) *instance {
	t.Helper()
	dsn := pgtest.Empty(t)
	if err := ledger.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	i := &instance{t: t, pool: pgtest.Connect(t, dsn, 8), log: &logged{}}
	i.ledger = ledger.New(i.pool, ledger.Options{Log: i.logger()})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- i.ledger.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the ledger ended with %v", err)
		}
	})
	return i.with(t, admin.Tokens{Admin: adminToken, Service: serviceToken})
}

func (i *instance) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(i.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// with is the API on the same ledger with other tokens.
func (i *instance) with(t *testing.T, tokens admin.Tokens) *instance {
	return i.at(t, admin.New(i.ledger, tokens, i.logger()))
}

func (i *instance) at(t *testing.T, handler http.Handler) *instance {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	other := *i
	other.t, other.url = t, s.URL
	return &other
}

// answer is what a request was answered.
type answer struct {
	status int
	header http.Header
	body   string
}

// code is the code of an error; empty if the answer is none.
func (a answer) code() string {
	var v struct {
		Error struct {
			Code, Message string
			RequestID     string `json:"request_id"`
		}
	}
	if json.Unmarshal([]byte(a.body), &v) != nil {
		return "not JSON"
	}
	if e := v.Error; e.Code != "" && (e.Message == "" || e.RequestID == "" || e.RequestID != a.header.Get("X-Request-Id")) {
		return "not in the shape of errors"
	}
	return v.Error.Code
}

// send sends a request. Headers come in pairs.
func (i *instance) send(token, method, path, body string, headers ...string) answer {
	i.t.Helper()
	r := i.request(token, method, path, body)
	for n := 0; n < len(headers); n += 2 {
		r.Header.Set(headers[n], headers[n+1])
	}
	return i.do(r)
}

// twice posts with a header that occurs more than once.
func (i *instance) twice(token, path, body, name string, values []string) answer {
	i.t.Helper()
	r := i.request(token, http.MethodPost, path, body)
	r.Header[name] = values
	return i.do(r)
}

func (i *instance) request(token, method, path, body string) *http.Request {
	i.t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(i.t.Context(), method, i.url+path, in)
	if err != nil {
		i.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

func (i *instance) do(r *http.Request) answer {
	i.t.Helper()
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		i.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		i.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// want sends a request of the admin's and demands a status. It reads the answer
// into into, unless that is nil.
func (i *instance) want(status int, into any, token, method, path, body string) answer {
	i.t.Helper()
	a := i.send(token, method, path, body)
	if a.status != status {
		i.t.Fatalf("%s %s %s: got %d %s, want %d", method, path, body, a.status, a.body, status)
	}
	if into != nil {
		if err := json.Unmarshal([]byte(a.body), into); err != nil {
			i.t.Fatalf("%s %s: %v in %s", method, path, err, a.body)
		}
	}
	return a
}

// capOf is what tests read of a cap.
type capOf struct {
	Currency   string `json:"currency"`
	Cap        int64  `json:"cap_minor"`
	Ceiling    int64  `json:"ceiling_minor"`
	Spent      int64  `json:"spent_minor"`
	Held       int64  `json:"held_minor"`
	Left       int64  `json:"left_minor"`
	Charges    int64  `json:"charges"`
	ByOperator bool   `json:"by_operator"`
}

// key is what tests read of a vault key.
type key struct {
	ID       string   `json:"id"`
	Label    string   `json:"label"`
	Run      string   `json:"run"`
	Rules    []string `json:"rules"`
	Mode     string   `json:"mode"`
	Window   string   `json:"window"`
	Manifest bool     `json:"manifest"`
	Expires  string   `json:"expires_at"`
	Revoked  string   `json:"revoked_at"`
	Reason   string   `json:"revoked_because"`
	By       string   `json:"created_by"`
	CountCap int64    `json:"count_cap"`
	Caps     []capOf  `json:"caps"`
	Secrets  []struct {
		Last4   string `json:"last4"`
		Retires string `json:"retires_at"`
	} `json:"secrets"`
	Raises []struct {
		What   string `json:"what"`
		From   int64  `json:"from_minor"`
		To     int64  `json:"to_minor"`
		Until  string `json:"until"`
		Reason string `json:"reason"`
		By     string `json:"by"`
	} `json:"raises"`
}

type issued struct {
	VaultKey key    `json:"vault_key"`
	Secret   string `json:"secret"`
}

const (
	anAgent = `{"label":"agent","rules":["intents:create","intents:confirm"],"caps":[{"currency":"usd","cap_minor":60000,"ceiling_minor":20000}]}`
	aRun    = `{"run":"2026-12","environment":"production","expires_at":"2099-01-31T00:00:00Z"}`
)

// issue issues a key as the admin.
func (i *instance) issue(body string) issued {
	i.t.Helper()
	var v issued
	i.want(http.StatusCreated, &v, adminToken, http.MethodPost, "/admin/v1/vault-keys", body)
	return v
}

// works reports whether the ledger knows a secret.
func (i *instance) works(secret string) bool {
	i.t.Helper()
	_, ok, _, err := i.ledger.Authenticate(i.t.Context(), secret)
	if err != nil {
		i.t.Fatal(err)
	}
	return ok
}
