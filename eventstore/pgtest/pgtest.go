package pgtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// MaxConns is the size of the pool that [Pool] returns.
const MaxConns = 10

// cleanupTimeout bounds what is done after a test.
const cleanupTimeout = 30 * time.Second

// database is the migrated database of one test.
type database struct {
	once sync.Once
	dsn  string
	pool func() *pgxpool.Pool
}

var databases sync.Map // testing.TB to *database

// DSN returns the URL of the test's own migrated database: the same one each
// time for the same t, another one in a subtest.
func DSN(t testing.TB) string {
	t.Helper()
	return of(t).dsn
}

// Pool returns the pool of connections to the database that [DSN] names. It is
// closed when the test ends; a connection still held then fails the test.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return of(t).pool()
}

// Connect returns a pool of its own to dsn, of so many connections, for instance
// by way of a [Proxy]. It is closed when the test ends.
func Connect(t testing.TB, dsn string, connections int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Empty returns the URL of a database without a schema, a new one each time.
func Empty(t testing.TB) string {
	t.Helper()
	return create(t, serverFor(t), "template0")
}

func of(t testing.TB) *database {
	t.Helper()
	value, _ := databases.LoadOrStore(t, &database{})
	db := value.(*database)
	db.once.Do(func() {
		t.Cleanup(func() { databases.Delete(t) })
		s := serverFor(t)
		template, err := s.template()
		if err != nil {
			t.Fatalf("pgtest: %v", err)
		}
		db.dsn = create(t, s, template)
		db.pool = sync.OnceValue(func() *pgxpool.Pool { return open(t, db.dsn) })
	})
	return db
}

func serverFor(t testing.TB) *server {
	t.Helper()
	find := forTests
	if _, ok := t.(*testing.B); ok {
		find = forBenchmarks
	}
	s, err := find()
	if err != nil {
		t.Fatalf("pgtest: tests need a PostgreSQL server; install one or set %s: %v", urlEnv, err)
	}
	return s
}

func create(t testing.TB, s *server, template string) string {
	t.Helper()
	name := s.newName()
	if err := s.clone(t.Context(), name, template); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return withDatabase(s.dsn, name)
}

func open(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	config.MaxConns = MaxConns
	config.ConnConfig.RuntimeParams["application_name"] = t.Name()
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			pool.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(cleanupTimeout):
			t.Error("pgtest: the test ended and holds a connection of its pool")
		}
	})
	return pool
}
