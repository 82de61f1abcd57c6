package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The three ways in which a client commits.
var commits = map[string]func(ctx context.Context, conn *pgx.Conn, word string) error{
	"transaction": func(ctx context.Context, conn *pgx.Conn, word string) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, `INSERT INTO words VALUES ($1)`, word); err != nil {
			return err
		}
		return tx.Commit(ctx)
	},
	"batch with a commit": func(ctx context.Context, conn *pgx.Conn, word string) error {
		batch := &pgx.Batch{}
		batch.Queue(`BEGIN`)
		batch.Queue(`INSERT INTO words VALUES ($1)`, word)
		batch.Queue(`COMMIT`)
		return conn.SendBatch(ctx, batch).Close()
	},
	"one statement": func(ctx context.Context, conn *pgx.Conn, word string) error {
		_, err := conn.Exec(ctx, `INSERT INTO words VALUES ($1)`, word)
		return err
	},
}

func words(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE words (word text PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	return pool
}

func stored(t *testing.T, pool *pgxpool.Pool, word string) bool {
	t.Helper()
	return number(t, pool, `SELECT count(*) FROM words WHERE word = $1`, word) == 1
}

func TestProxyLosesTheAnswerToACommit(t *testing.T) {
	t.Parallel()
	for name, commit := range commits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := words(t)
			proxy := pgtest.NewProxy(t, pgtest.DSN(t))
			if err := commit(t.Context(), connect(t, proxy.DSN()), "before"); err != nil {
				t.Fatalf("with nothing armed: %v", err)
			}
			lost := proxy.DropServerToClientOnCommit()
			conn := connect(t, proxy.DSN())
			if err := commit(t.Context(), conn, "lost"); err == nil {
				t.Error("the client heard of its commit")
			}
			<-lost
			if !stored(t, pool, "lost") {
				t.Error("the transaction was not committed")
			}
			if !conn.IsClosed() {
				t.Error("the connection was not broken")
			}
			if err := commit(t.Context(), connect(t, proxy.DSN()), "after"); err != nil {
				t.Errorf("a second answer was lost: %v", err)
			}
		})
	}
}

func TestProxyLosesTheCommit(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"transaction", "batch with a commit"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := words(t)
			proxy := pgtest.NewProxy(t, pgtest.DSN(t))
			lost := proxy.DropClientToServerOnCommit()
			if err := commits[name](t.Context(), connect(t, proxy.DSN()), "lost"); err == nil {
				t.Error("the client heard of a commit")
			}
			<-lost
			// The same key waits for the lost transaction's end, and then is free.
			if _, err := pool.Exec(t.Context(), `INSERT INTO words VALUES ('lost')`); err != nil {
				t.Errorf("the lost transaction left something: %v", err)
			}
		})
	}
}

func TestProxyLosesOnlyWhatIsMeant(t *testing.T) {
	t.Parallel()
	pool := words(t)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE others (word text)`); err != nil {
		t.Fatal(err)
	}
	proxy := pgtest.NewProxy(t, pgtest.DSN(t))
	lost := proxy.DropServerToClientOnCommit("INSERT", "others")
	conn := connect(t, proxy.DSN())
	for name, commit := range commits {
		if err := commit(t.Context(), conn, name); err != nil {
			t.Errorf("%s: another transaction's answer was lost: %v", name, err)
		}
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO words VALUES ('one statement'), ('others')`); err == nil || conn.IsClosed() {
		t.Errorf("a refusal did not get through: %v", err)
	}
	select {
	case <-lost:
		t.Fatal("something was lost already")
	default:
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO others VALUES ('x')`); err == nil {
		t.Error("the answer that was meant got through")
	}
	<-lost
}

func TestProxyCutAll(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.DSN(t))
	conn := connect(t, proxy.DSN())
	proxy.CutAll()
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a cut connection answers")
	}
	if err := connect(t, proxy.DSN()).Ping(t.Context()); err != nil {
		t.Errorf("a new connection: %v", err)
	}
}

func TestProxyPause(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.DSN(t))
	conn := connect(t, proxy.DSN())
	proxy.Pause()
	proxy.Pause()
	answered := make(chan error)
	go func() { answered <- conn.Ping(t.Context()) }()
	select {
	case err := <-answered:
		t.Errorf("a paused connection answers: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	proxy.Resume()
	if err := <-answered; err != nil {
		t.Errorf("after Resume: %v", err)
	}
}

// A long line delays each round trip, and does not make many messages slow.
func TestProxyDelay(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.DSN(t))
	const delay = 30 * time.Millisecond
	proxy.Delay(delay)
	conn := connect(t, proxy.DSN())
	begun := time.Now()
	for range 3 {
		if err := conn.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begun); took < 6*delay {
		t.Errorf("three round trips took %s", took)
	}
	const queries = 100
	batch := &pgx.Batch{}
	for range queries {
		batch.Queue(`SELECT 1`)
	}
	begun = time.Now()
	if err := conn.SendBatch(t.Context(), batch).Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < 2*delay || took > queries*delay {
		t.Errorf("a batch of %d took %s", queries, took)
	}
}
