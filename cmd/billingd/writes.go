package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// writes notes what the database has refused of late for reasons of its own:
// nobody can ask a disk whether it will be full.
type writes struct {
	refused atomic.Pointer[refusal]
	trips   atomic.Int64 // statements and batches: each is a round trip to the database
}

type refusal struct {
	reason error
	at     time.Time
}

// refusalCounts is how long one is a reason not to be ready. Whatever meets one
// tries again sooner than that.
const refusalCounts = 15 * time.Second

// Why the database does not do what it is asked for.
var (
	errDiskFull = errors.New("the database's disk is full")
	errDisk     = errors.New("the database's disk fails")
	errMemory   = errors.New("the database is out of memory")
	errNoRight  = errors.New("the database's user lacks a right that it had")
	errNoTable  = errors.New("the database lacks a table that it had")
)

func reasonOf(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return nil
	}
	switch pg.Code {
	case "53100":
		return errDiskFull
	case "53200":
		return errMemory
	case "42501":
		return errNoRight
	case "42P01":
		return errNoTable
	}
	if strings.HasPrefix(pg.Code, "58") {
		return errDisk
	}
	return nil
}

// check says what was refused in the last seconds.
func (w *writes) check(context.Context) error {
	if r := w.refused.Load(); r != nil && time.Since(r.at) < refusalCounts {
		return r.reason
	}
	return nil
}

// forget passes over what was refused so far.
func (w *writes) forget() { w.refused.Store(nil) }

func (w *writes) note(err error) {
	if err == nil {
		return
	}
	if reason := reasonOf(err); reason != nil {
		w.refused.Store(&refusal{reason, time.Now()})
	}
}

// The driver tells of every statement and batch.

func (w *writes) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (w *writes) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	w.trips.Add(1)
	w.note(d.Err)
}

func (w *writes) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (w *writes) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	w.note(d.Err)
}

func (w *writes) TraceBatchEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchEndData) {
	w.trips.Add(1)
	w.note(d.Err)
}
