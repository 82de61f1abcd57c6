package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/billonce/billonce/eventstore/pglocal"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	urlEnv = "TEST_DATABASE_URL"
	dirEnv = "PGTEST_DIR"
	// watchEnv makes a test program the watcher of the data directory it names.
	watchEnv = "PGTEST_WATCH"

	// idleTime is how long a server without test programs is kept: the time between
	// two packages of one go test.
	idleTime = 5 * time.Second
	// openTimeout bounds the start of a server or the making of a template.
	openTimeout = 3 * time.Minute
	// connections suffices for many packages with many parallel tests at once.
	connections = 600
	// maxIdle is how many connections for commands are kept.
	maxIdle = 4
)

// server is a server that tests share.
type server struct {
	dsn     string // of the database from which others are made
	version int    // as PostgreSQL numbers itself: 150013
	fsync   bool   // it waits for the disk
	owner   string // this program's part in the names of its databases
	count   atomic.Int64

	// holder keeps this program's advisory locks until the program ends. One
	// goroutine at a time uses it: find's, then template's.
	holder   *pgx.Conn
	template func() (string, error)

	mu   sync.Mutex
	idle []*pgx.Conn
}

var (
	forTests      = sync.OnceValues(func() (*server, error) { return find(false) })
	forBenchmarks = sync.OnceValues(func() (*server, error) { return find(true) })
)

func init() {
	if dataDir := os.Getenv(watchEnv); dataDir != "" {
		if err := pglocal.StopWhenIdle(context.Background(), dataDir, idleTime); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// find connects to the server of this program's tests, and starts it if need be.
func find(durable bool) (*server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()

	s := &server{dsn: os.Getenv(urlEnv), owner: strings.ToLower(rand.Text()[:10])}
	if s.dsn == "" {
		dsn, err := startLocal(ctx, durable)
		if err != nil {
			return nil, err
		}
		s.dsn = dsn
	}
	if err := s.hold(ctx); err != nil {
		return nil, err
	}
	if err := s.sweep(ctx); err != nil {
		return nil, err
	}
	s.template = sync.OnceValues(func() (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
		defer cancel()
		return s.makeTemplate(ctx)
	})
	return s, nil
}

// hold opens the connection that lives as long as this program.
func (s *server) hold(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return err
	}
	s.holder = conn
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('fsync')::bool`).Scan(&s.version, &s.fsync)
	if err != nil {
		return err
	}
	if s.version/10000 < pglocal.OldestMajor {
		return fmt.Errorf("the server is PostgreSQL %d, needed is %d or newer", s.version/10000, pglocal.OldestMajor)
	}
	if _, err := conn.Exec(ctx, `SET idle_session_timeout = 0`); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, lockExclusive, testPrefix+s.owner)
	return err
}

// startLocal returns a database of a server on this machine, and leaves the
// server to the watcher.
func startLocal(ctx context.Context, durable bool) (string, error) {
	kind := "volatile"
	if durable {
		kind = "durable"
	}
	dataDir, err := localDir(kind)
	if err != nil {
		return "", err
	}
	local, err := pglocal.Start(ctx, pglocal.Options{DataDir: dataDir, Volatile: !durable, MaxConnections: connections})
	if err != nil {
		return "", err
	}
	if err := ensureWatcher(local, dataDir); err != nil {
		return "", errors.Join(err, local.Stop(ctx))
	}
	return local.DSN("postgres"), nil
}

// localDir makes the folder of a server: in PGTEST_DIR, else in the cache of the
// user or, for root, of the machine, else in the temporary folder. Root's own
// cache is closed to the user that root's server runs as.
func localDir(kind string) (string, error) {
	if dir := os.Getenv(dirEnv); dir != "" {
		dir = filepath.Join(dir, kind)
		return dir, os.MkdirAll(dir, 0o755)
	}
	var parents []string
	if os.Geteuid() == 0 {
		parents = append(parents, "/var/cache/billonce-pgtest")
	} else if cache, err := os.UserCacheDir(); err == nil {
		parents = append(parents, filepath.Join(cache, "billonce-pgtest"))
	}
	parents = append(parents, filepath.Join(os.TempDir(), "billonce-pgtest-"+strconv.Itoa(os.Geteuid())))
	var faults []error
	for _, parent := range parents {
		dir := filepath.Join(parent, kind)
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = ours(parent)
		}
		if err == nil {
			return dir, nil
		}
		faults = append(faults, err)
	}
	return "", errors.Join(faults...)
}

// ours makes sure that nobody else made or may change the folder.
func ours(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a folder of ours alone", dir)
	}
	return nil
}

// ensureWatcher runs this test program once more as the server's watcher, in a
// session of its own and with no tie to go test, unless there is one.
func ensureWatcher(local *pglocal.Server, dataDir string) error {
	watched, err := local.Watched()
	if err != nil || watched {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	watcher := exec.Command(program)
	watcher.Dir = "/"
	watcher.Env = append(os.Environ(), watchEnv+"="+dataDir)
	watcher.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := watcher.Start(); err != nil {
		return err
	}
	return watcher.Process.Release()
}

// command runs one statement. Making and dropping a database takes long enough
// for tests to do it side by side, and a connection long enough to be kept.
func (s *server) command(ctx context.Context, sql string) error {
	conn, err := s.takeIdle(ctx)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	s.putIdle(ctx, conn)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "42501" { // insufficient_privilege
		return fmt.Errorf("the role of %s must be allowed to create databases: %w", urlEnv, err)
	}
	return err
}

// A pgxpool would do, but for its goroutines, which tests that count theirs
// would find.
func (s *server) takeIdle(ctx context.Context) (*pgx.Conn, error) {
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		conn := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return conn, nil
	}
	s.mu.Unlock()
	return pgx.Connect(ctx, s.dsn)
}

// putIdle keeps a connection for the next command, unless it is broken.
func (s *server) putIdle(ctx context.Context, conn *pgx.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn.IsClosed() || len(s.idle) == maxIdle {
		conn.Close(context.WithoutCancel(ctx))
		return
	}
	s.idle = append(s.idle, conn)
}
