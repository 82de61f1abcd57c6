package selftest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/demo"
	"github.com/billonce/billonce/cmd/billingctl/internal/imports"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
	"github.com/billonce/billonce/eventstore/pglocal"
)

// Settings of every service in a series.
const (
	stripeTimeout = time.Second
	lease         = 2 * time.Second
	poll          = 500 * time.Millisecond
	account       = "acct_selftest"
	period        = "2026-12"
	template      = "month"
	upWithin      = 60 * time.Second
	pool          = "4"  // a connection is dear where every run has a database of its own: each one learns it anew
	abandoned     = "3s" // the server ends the transaction of whoever is frozen in it; 15s elsewhere
)

// The stand-in's clock: before anybody owes anything, and when all do.
var (
	clockStart = time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	clockDue   = time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)
)

// house is what the runs of a series share: the database server, and the
// database that every run gets a copy of.
type house struct {
	folder    *parts.Folder
	binDir    string
	server    *pglocal.Server
	customers []demo.Customer
	token     string
	stripeKey string
	admin     *pgxpool.Pool // for what happens outside any run's database
	copying   string        // how the server copies a database for the least work
	dropping  sync.WaitGroup
}

// customersOf makes the customers of a month. Most of their cards are good; one
// is declined once, one always, and one takes a while.
func customersOf() []demo.Customer {
	all := demo.Generate(demo.Seed, bills)
	all[0].PaymentMethodID = "pm_sim_declines_n_2_insufficient_funds"
	all[1].PaymentMethodID = "pm_sim_declines_insufficient_funds"
	all[2].PaymentMethodID = "pm_sim_processing_10m_succeeds"
	return all
}

// open starts the server and fills the template: a database in which everybody
// is a customer and nobody owes anything yet.
func (h *house) open(ctx context.Context, lanes int) (err error) {
	h.token, h.stripeKey, h.customers = rand.Text(), "sk_test_selftest"+rand.Text(), customersOf()
	h.server, err = pglocal.Start(ctx, pglocal.Options{DataDir: h.folder.Path("database"), Volatile: true, MaxConnections: 60 + 30*lanes})
	if err != nil {
		return err
	}
	if h.admin, err = pgxpool.New(ctx, h.server.DSN("postgres")); err != nil {
		return err
	}
	if _, err := h.server.EnsureDatabase(ctx, template); err != nil {
		return err
	}
	var version int
	if err := h.admin.QueryRow(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		return err
	}
	if version >= 150000 { // others know no other way
		h.copying = " STRATEGY file_copy" // its check-points are cheap on a server that syncs nothing
	}
	stand, stop, err := h.startStandIn(ctx, "stripesim-filling")
	if err != nil {
		return err
	}
	defer stop()
	service := h.replica("billingd-filling", stand, h.server.DSN(template), nil)
	if err := service.start(ctx, ""); err != nil {
		return err
	}
	filled := h.fill(ctx, service)
	return errors.Join(filled, service.stop())
}

func (h *house) fill(ctx context.Context, service *replica) error {
	c, err := service.client(ctx)
	if err != nil {
		return err
	}
	var file bytes.Buffer
	if err := demo.Write(&file, h.customers); err != nil {
		return err
	}
	result, err := imports.Run(ctx, c, &file, imports.Options{})
	if err != nil || result.Failed > 0 {
		return fmt.Errorf("fill the template: %d of %d customers imported: %w", result.Imported, bills, err)
	}
	return caughtUp(ctx, c, upWithin)
}

// caughtUp waits until every processor is at the end of the log.
func caughtUp(ctx context.Context, c *client.Client, bound time.Duration) error {
	var last string
	err := parts.AwaitEvery(ctx, look, bound, func() (bool, error) {
		p, err := parts.ReadProcessors(ctx, c)
		if err != nil {
			last = err.Error()
			return false, context.Cause(ctx)
		}
		last = p.Behind()
		return last == "", nil
	})
	if errors.Is(err, parts.ErrTooLong) {
		return fmt.Errorf("the processors have not come to the end of the log in %s: %s", bound, last)
	}
	return err
}

// startStandIn starts a stand-in that keeps everything in memory.
func (h *house) startStandIn(ctx context.Context, name string) (stand parts.StandIn, stop func(), err error) {
	ports := h.folder.Path(name + ".json")
	child, err := h.folder.StartAs(name, h.binDir, "stripesim", map[string]string{
		"STRIPESIM_LISTEN":         "127.0.0.1:0",
		"STRIPESIM_CONTROL_LISTEN": "127.0.0.1:0",
		"STRIPESIM_API_KEYS":       h.stripeKey,
		"STRIPESIM_ACCOUNT":        account,
		"STRIPESIM_CLOCK":          clockStart.Format(time.RFC3339),
		"STRIPESIM_PORT_FILE":      ports,
	}, func(error) {})
	if err != nil {
		return stand, nil, err
	}
	stop = func() { _ = child.Stop() } // it has nothing to lose
	content, err := child.AwaitFile(ctx, ports, upWithin)
	if err == nil {
		var at struct{ API, Control string }
		err = json.Unmarshal(content, &at)
		stand = parts.StandIn{API: at.API, Control: at.Control}
	}
	if err != nil {
		stop()
	}
	return stand, stop, err
}

// clone makes a run's database out of the template.
func (h *house) clone(ctx context.Context, database string) error {
	if _, err := h.admin.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{database}.Sanitize()+` TEMPLATE `+template+h.copying); err != nil {
		return fmt.Errorf("clone the database of a run: %w", err)
	}
	return nil
}

func (h *house) drop(ctx context.Context, database string) error {
	if _, err := h.admin.Exec(ctx, `DROP DATABASE IF EXISTS `+pgx.Identifier{database}.Sanitize()+` WITH (FORCE)`); err != nil {
		return fmt.Errorf("drop the database of a run: %w", err)
	}
	return nil
}

// replica is one place for a billingd: it dies, and is started again.
type replica struct {
	h      *house
	name   string
	stand  parts.StandIn
	dsn    string
	broken map[string]string // settings that take a rule out

	charges bool // it takes money by legacy Charges
	lives   []life
	life    int
	child   *parts.Child
	ended   time.Time // when the last life was seen to have ended
	stopped bool      // by its own point
	deaths  int
}

func (h *house) replica(name string, stand parts.StandIn, dsn string, broken map[string]string) *replica {
	return &replica{h: h, name: name, stand: stand, dsn: dsn, broken: broken}
}

func (r *replica) portFile() string { return r.h.folder.Path(r.name + ".address") }

// start starts a process, armed with crash points, and does not wait for it.
func (r *replica) start(_ context.Context, crash string) (err error) {
	if err := os.Remove(r.portFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	hash := sha256.Sum256([]byte(r.h.token))
	settings := map[string]string{
		"DATABASE_URL":           r.dsn + "&idle_in_transaction_session_timeout=" + abandoned,
		"STRIPE_API_BASE":        r.stand.API,
		"STRIPE_API_KEY":         r.h.stripeKey,
		"BILLING_LISTEN":         "127.0.0.1:0",
		"BILLING_PORT_FILE":      r.portFile(),
		"BILLING_TOKENS":         "selftest:read+dispatch+operate:" + hex.EncodeToString(hash[:]),
		"BILLING_ENVIRONMENT":    "selftest",
		"BILLING_DATA_DIR":       r.h.folder.Path("billingd-data"),
		"BILLING_CLOCK_URL":      r.stand.ClockURL(),
		"BILLING_STRIPE_TIMEOUT": stripeTimeout.String(),
		"BILLING_STRIPE_RATE":    "0",
		"BILLING_LEASE":          lease.String(),
		"BILLING_POLL":           poll.String(),
		"BILLING_CONCURRENCY":    "16",
		"BILLING_DB_POOL":        pool,
		"BILLING_SHUTDOWN_GRACE": "5s",
		"GOMAXPROCS":             "1",
	}
	for name, value := range r.broken {
		settings[name] = value
	}
	if r.charges {
		settings["STRIPE_API"] = "charges"
	}
	if crash != "" {
		settings["BILLING_CRASH"] = crash
	}
	r.child, err = r.h.folder.StartAs(r.name, r.h.binDir, "billingd", settings, func(error) {})
	return err
}

// alive reports whether the process is there and has not been frozen.
func (r *replica) alive() bool { return r.child != nil && !r.dead() && !r.frozen() }

func (r *replica) dead() bool {
	select {
	case <-r.child.Ended():
		return true
	default:
		return false
	}
}

// frozen reports whether the process has stopped itself, as its log tells.
func (r *replica) frozen() bool {
	if r.stopped || r.child == nil || r.life >= len(r.lives) || !strings.HasSuffix(r.lives[r.life].crash, ":stop") {
		return r.stopped
	}
	said, err := os.ReadFile(r.child.Log)
	r.stopped = err == nil && bytes.Contains(said, []byte(": this process stops"))
	return r.stopped
}

// address is where the service answers; false: it does not, or not yet.
func (r *replica) address() (url string, ok bool) {
	if !r.alive() {
		return "", false
	}
	address, err := os.ReadFile(r.portFile())
	return "http://" + strings.TrimSpace(string(address)), err == nil
}

// client waits for the service's address.
func (r *replica) client(ctx context.Context) (*client.Client, error) {
	address, err := r.child.AwaitFile(ctx, r.portFile(), upWithin)
	if err != nil {
		return nil, err
	}
	return client.New("http://"+strings.TrimSpace(string(address)), r.h.token)
}

// stop stops the process in order.
func (r *replica) stop() error {
	if r.child == nil {
		return nil
	}
	return r.child.Stop()
}

// end ends the process at once, and takes away what only it needed.
func (r *replica) end() {
	if r.child != nil {
		_ = r.child.Kill() // it may have died already
	}
	for _, suffix := range []string{".address", ".pid", ".lock"} {
		_ = os.Remove(r.h.folder.Path(r.name + suffix))
	}
}
