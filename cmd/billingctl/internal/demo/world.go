package demo

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
	"github.com/billonce/billonce/eventstore/pglocal"
)

// Settings of the service in a demo.
const (
	stripeTimeout = time.Second
	lease         = 2 * time.Second
)

// upWithin bounds how long a process may take to come up.
const upWithin = 45 * time.Second

// world is the demo's parts as they run.
type world struct {
	folder *parts.Folder
	binDir string
	died   func(error)

	server    *pglocal.Server
	dsn       string
	stripesim *parts.Child
	stand     parts.StandIn
	billingd  *parts.Child
	api       string // http://host:port of billingd
	token     string // of the demo, for billingd
	stripeKey string // which the proxy alone holds, unless direct

	concurrency  int  // bills that billingd has in flight at most
	direct       bool // billingd calls the stand-in itself
	spendproxy   *parts.Child
	proxy        parts.Proxy
	serviceToken string // billingd's, for the proxy's admin API
	proxyDSN     string
	vaultKey     string // billingd's own
	refundKey    string // billingd's, for what goes back
}

// open starts the database and the stand-in, whose clock stands at start.
func (w *world) open(ctx context.Context, start time.Time) (err error) {
	if w.server, err = pglocal.Start(ctx, pglocal.Options{DataDir: w.folder.Path("database")}); err != nil {
		return err
	}
	if w.dsn, err = w.server.EnsureDatabase(ctx, "billonce"); err != nil {
		return err
	}
	w.token, w.stripeKey = rand.Text(), "sk_test_demo"+rand.Text()
	ports := w.folder.Path("stripesim.json")
	w.stripesim, err = w.folder.Start(w.binDir, "stripesim", map[string]string{
		"STRIPESIM_LISTEN":         "127.0.0.1:0",
		"STRIPESIM_CONTROL_LISTEN": "127.0.0.1:0",
		"STRIPESIM_DATA":           w.folder.Path("stripesim.journal"),
		"STRIPESIM_API_KEYS":       w.stripeKey,
		"STRIPESIM_CLOCK":          start.Format(time.RFC3339),
		"STRIPESIM_PORT_FILE":      ports,
	}, w.died)
	if err != nil {
		return err
	}
	content, err := w.stripesim.AwaitFile(ctx, ports, upWithin)
	if err != nil {
		return err
	}
	var at struct{ API, Control string }
	if err := json.Unmarshal(content, &at); err != nil {
		return fmt.Errorf("read %s: %w", ports, err)
	}
	w.stand = parts.StandIn{API: at.API, Control: at.Control}
	return nil
}

// openProxy starts the spend proxy on a database of its own.
func (w *world) openProxy(ctx context.Context) error {
	dsn, err := w.server.EnsureDatabase(ctx, "spendproxy")
	if err != nil {
		return err
	}
	w.proxyDSN, w.proxy.Token, w.serviceToken = dsn, rand.Text(), rand.Text()
	return w.startProxy(ctx, "127.0.0.1:0")
}

// startProxy starts the proxy at an address and waits until it listens.
func (w *world) startProxy(ctx context.Context, listen string) (err error) {
	ports := w.folder.Path("spendproxy.json")
	if err := os.Remove(ports); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	w.spendproxy, err = w.folder.Start(w.binDir, "spendproxy", map[string]string{
		"SPENDPROXY_LISTEN":        listen,
		"SPENDPROXY_PORT_FILE":     ports,
		"SPENDPROXY_UPSTREAM":      w.stand.API,
		"SPENDPROXY_STRIPE_KEY":    w.stripeKey,
		"SPENDPROXY_ADMIN_TOKEN":   w.proxy.Token,
		"SPENDPROXY_SERVICE_TOKEN": w.serviceToken,
		"SPENDPROXY_DATABASE_URL":  w.proxyDSN,
		"SPENDPROXY_CLOCK_URL":     w.stand.ClockURL(),
	}, w.died)
	if err != nil {
		return err
	}
	content, err := w.spendproxy.AwaitFile(ctx, ports, upWithin)
	if err != nil {
		return err
	}
	var at struct{ API string }
	if err := json.Unmarshal(content, &at); err != nil {
		return fmt.Errorf("read %s: %w", ports, err)
	}
	w.proxy.Address = at.API
	return nil
}

// issueKeys issues the vault keys that billingd starts with: one that cannot
// take money, and one that gives as much back as was owed.
func (w *world) issueKeys(ctx context.Context, owed []parts.VaultCap) (err error) {
	if w.vaultKey, err = w.proxy.Issue(ctx, "billingd reads and cancels", parts.ReadRules, "total", nil); err != nil {
		return err
	}
	w.refundKey, err = w.proxy.Issue(ctx, "billingd refunds", []string{"refunds:create", "refunds:read"}, "total", owed)
	return err
}

// startService starts billingd and waits until it is ready.
func (w *world) startService(ctx context.Context) (err error) {
	hash := sha256.Sum256([]byte(w.token))
	ports := w.folder.Path("billingd.address")
	if err := os.Remove(ports); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	settings := map[string]string{
		"DATABASE_URL":           w.dsn,
		"BILLING_LISTEN":         "127.0.0.1:0",
		"BILLING_PORT_FILE":      ports,
		"BILLING_TOKENS":         "demo:read+dispatch+operate:" + hex.EncodeToString(hash[:]),
		"BILLING_ENVIRONMENT":    "demo",
		"BILLING_DATA_DIR":       w.folder.Path("billingd-data"),
		"BILLING_CLOCK_URL":      w.stand.ClockURL(),
		"BILLING_STRIPE_TIMEOUT": stripeTimeout.String(),
		"BILLING_STRIPE_RATE":    "0",
		"BILLING_LEASE":          lease.String(),
		"BILLING_CONCURRENCY":    strconv.Itoa(w.concurrency),
		"BILLING_SHUTDOWN_GRACE": "10s",
	}
	maps.Copy(settings, w.road())
	w.billingd, err = w.folder.Start(w.binDir, "billingd", settings, w.died)
	if err != nil {
		return err
	}
	content, err := w.billingd.AwaitFile(ctx, ports, upWithin)
	if err != nil {
		return err
	}
	w.api = "http://" + strings.TrimSpace(string(content))
	if err := w.note(w.addresses()); err != nil {
		return err
	}
	var reason string
	err = parts.Await(ctx, upWithin, func() (ready bool, err error) {
		ready, reason, err = w.ready(ctx)
		return ready, err
	})
	if errors.Is(err, parts.ErrTooLong) {
		return fmt.Errorf("billingd is not ready after %s: %s; its log is %s", upWithin, reason, w.billingd.Log)
	}
	return err
}

// road is how billingd reaches Stripe: through the proxy, without its key.
func (w *world) road() map[string]string {
	if w.direct {
		return map[string]string{"STRIPE_API_BASE": w.stand.API, "STRIPE_API_KEY": w.stripeKey}
	}
	return map[string]string{
		"STRIPE_API_BASE":         w.proxy.Address,
		"STRIPE_API_KEY":          w.vaultKey,
		"STRIPE_REFUND_KEY":       w.refundKey,
		"BILLING_PROXY_ADMIN_URL": w.proxy.Address,
		"BILLING_PROXY_TOKEN":     w.serviceToken,
	}
}

// ready asks whether billingd may be given work, and why not.
func (w *world) ready(ctx context.Context) (ready bool, reason string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.api+"/readyz", nil)
	if err != nil {
		return false, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, err.Error(), context.Cause(ctx)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return false, err.Error(), context.Cause(ctx)
	}
	return res.StatusCode == http.StatusOK, strings.TrimSpace(string(body)), nil
}

func (w *world) addresses() addresses {
	return addresses{
		API: w.api, Token: w.token, Database: w.dsn, Stripe: w.stand.API, StripeKey: w.stripeKey, Control: w.stand.Control,
		Proxy: w.proxy.Address, ProxyToken: w.proxy.Token,
	}
}

// client speaks to billingd as it runs now.
func (w *world) client() (*client.Client, error) { return client.New(w.api, w.token) }

// query reads the demo's own database.
func (w *world) query(ctx context.Context, sql string, into ...any) error {
	conn, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.QueryRow(ctx, sql).Scan(into...)
}

// inFlight are the customers, by their names at Stripe, whose bills were
// claimed and have no outcome on record.
func (w *world) inFlight(ctx context.Context) (names []string, err error) {
	err = w.query(ctx, `SELECT coalesce(array_agg(stripe_customer_id), '{}') FROM billing_records WHERE state = 'sending'`, &names)
	if err != nil {
		return nil, fmt.Errorf("count the bills in flight: %w", err)
	}
	return names, nil
}

// stop stops everything in order, and says of each part that did not.
func (w *world) stop(ctx context.Context) error {
	var faults []error
	for _, c := range []*parts.Child{w.billingd, w.spendproxy, w.stripesim} {
		if c != nil {
			faults = append(faults, c.Stop())
		}
	}
	if w.server != nil {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		faults = append(faults, w.server.Stop(ctx))
	}
	return errors.Join(faults...)
}

// addresses say how the parts of a demo are reached.
type addresses struct {
	API       string `json:"api"`
	Token     string `json:"token"`
	Database  string `json:"database"`
	Stripe    string `json:"stripe"`
	StripeKey string `json:"stripe_key"`
	Control   string `json:"control"`

	Proxy      string `json:"proxy,omitempty"`
	ProxyToken string `json:"proxy_token,omitempty"` // of its admin API
}

// note writes addresses down.
func (w *world) note(a addresses) error {
	content, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(w.folder.Path("demo.json"), append(content, '\n'), 0o600)
}
