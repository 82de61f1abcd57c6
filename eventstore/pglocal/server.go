package pglocal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Options say which server to start and where.
type Options struct {
	// DataDir is where the data is kept; it is made if it is missing. It may be
	// long and may hold spaces.
	DataDir string
	// BinDir is the folder of postgres and initdb. Empty: the value of
	// [BinDirEnv], and if that is empty too, wherever they are found.
	BinDir string
	// User is whom PostgreSQL runs as when the caller is root and the data has no
	// owner yet. Empty: postgres, else nobody.
	User string
	// Port is tried first; if it is taken, or 0, a free one is used.
	Port int
	// MaxConnections is the server's limit. 0: 200.
	MaxConnections int
	// Volatile gives durability up for speed: after a power cut the data may be
	// damaged, and is then thrown away and made anew. It is for databases of
	// tests. The death of clients or of the server by kill -9 loses nothing. A
	// data directory is volatile for good or not at all.
	Volatile bool
	// Log tells of start and stop. Nil: silent.
	Log *slog.Logger
}

const defaultConnections = 200

// Server is a PostgreSQL that runs for this process, and perhaps for others too.
type Server struct {
	cluster  cluster
	dataDir  string
	port     int
	log      *slog.Logger
	mu       sync.Mutex // held by Stop
	users    lock
	released bool
}

// inUse keeps the servers of this process reachable until they are stopped: a
// file that the garbage collector closes would lose its lock, and the server its
// user, though the DSN is in use.
var inUse sync.Map // *Server to nothing

// Start returns a running server with its data in opts.DataDir, which this call
// has started or found running. When ctx ends first, what was begun is undone.
//
// It fails with [ErrNoServer] if the machine has nothing to start, and otherwise
// in words an operator can act on.
func Start(ctx context.Context, opts Options) (*Server, error) {
	s, err := start(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	return s, nil
}

func start(ctx context.Context, opts Options) (*Server, error) {
	if opts.DataDir == "" {
		return nil, errors.New("no data directory given")
	}
	dataDir, err := filepath.Abs(opts.DataDir)
	if err != nil {
		return nil, err
	}
	if opts.MaxConnections == 0 {
		opts.MaxConnections = defaultConnections
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}

	starting, err := lockDataDir(dataDir)
	if err != nil {
		return nil, err
	}
	defer starting.drop()
	if err := starting.take(ctx, syscall.LOCK_EX); err != nil {
		return nil, err
	}

	s := &Server{dataDir: dataDir, log: opts.Log}
	if s.cluster, err = prepare(ctx, dataDir, opts); err != nil {
		return nil, err
	}
	if s.users, err = openLock(filepath.Join(s.cluster.home, "users"), s.cluster.who); err != nil {
		return nil, err
	}
	err = s.users.take(ctx, syscall.LOCK_SH)
	if err == nil {
		err = s.launch(ctx, opts)
	}
	if err != nil {
		return nil, errors.Join(err, s.leave(context.WithoutCancel(ctx)))
	}
	inUse.Store(s, nil)
	return s, nil
}

// prepare makes ready what a server needs: its folder, its binaries, its data.
// The caller holds the data directory's lock.
func prepare(ctx context.Context, dataDir string, opts Options) (cluster, error) {
	var (
		c   = cluster{volatile: opts.Volatile}
		err error
	)
	if c.home, c.who, err = home(dataDir, opts.User); err != nil {
		return cluster{}, err
	}
	if _, err := os.Lstat(clusterDir(c.home, !opts.Volatile)); err == nil {
		return cluster{}, fmt.Errorf("%s holds a cluster with volatile %t, wanted is %t", dataDir, !opts.Volatile, opts.Volatile)
	}
	major, err := writtenBy(c.dir())
	if err != nil {
		return cluster{}, err
	}
	c.bin, err = findBinaries(ctx, opts.BinDir, major, c.who)
	if errors.Is(err, ErrNoServer) && major != 0 && c.volatile {
		// Throw-away data of a version that is gone.
		if err := c.discard(); err != nil {
			return cluster{}, err
		}
		major = 0
		c.bin, err = findBinaries(ctx, opts.BinDir, 0, c.who)
	}
	if err != nil {
		return cluster{}, err
	}
	if err := c.ensurePassword(major == 0); err != nil {
		return cluster{}, err
	}
	if major == 0 {
		opts.Log.Info("making a PostgreSQL cluster", "dir", c.dir(), "version", c.bin.version, "user", c.who.name)
		if err := c.initialise(ctx); err != nil {
			return cluster{}, err
		}
	}
	return c, nil
}

// DSN is the URL of a database on this server, for the role that owns
// everything. It holds the password: do not log it. It changes from one start of
// the server to the next with the port.
func (s *Server) DSN(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(Superuser, s.cluster.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// EnsureDatabase makes the database if it is missing and returns its DSN.
func (s *Server) EnsureDatabase(ctx context.Context, database string) (string, error) {
	if err := s.ensureDatabase(ctx, database); err != nil {
		return "", fmt.Errorf("make database %s: %w", database, err)
	}
	return s.DSN(database), nil
}

// What PostgreSQL says to whoever makes a database that another process has just
// made, or is making at this moment.
var madeByAnother = []string{"42P04", "23505"}

func (s *Server) ensureDatabase(ctx context.Context, database string) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, database).Scan(&exists)
	if err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{database}.Sanitize())
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(madeByAnother, refused.Code) {
		return nil
	}
	return err
}
