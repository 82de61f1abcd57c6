package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS is the schema: one SQL file a step, numbered.
//
//go:embed *.sql
var FS embed.FS

// Newest is the number of the newest step of this version.
func Newest() (newest int64) {
	steps, _ := FS.ReadDir(".") // the embedded files are always there
	for _, step := range steps {
		digits, _, _ := strings.Cut(step.Name(), "_")
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
			newest = max(newest, n)
		}
	}
	return newest
}

// Applied reports whether the database has the schema of this version, or of a
// later one.
func Applied(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	var newest int64
	err := pool.QueryRow(ctx, `SELECT coalesce(max(version_id) FILTER (WHERE is_applied), 0) FROM goose_db_version`).Scan(&newest)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == undefinedTable {
		return false, nil
	}
	return newest >= Newest(), err
}

const (
	undefinedTable   = "42P01"
	lockNotAvailable = "55P03"
)

// How long one replica waits for another's migration, and one statement for a
// table lock: 5 tries a second for a minute.
const (
	lockRetrySeconds = 1
	lockRetries      = 60
	lockTimeout      = "15s"
)

// Up brings the database at dsn to the newest schema. It is safe to call from
// many processes at once; each step is applied once. It fails, and names the
// step, if a table lock is not had within 15 seconds.
func Up(ctx context.Context, dsn string) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return errors.New("migrate: the database URL cannot be read") // the parser's own words may quote the password
	}
	config.RuntimeParams["lock_timeout"] = lockTimeout
	db := stdlib.OpenDB(*config)
	defer db.Close()
	db.SetMaxOpenConns(2) // one holds the advisory lock, one works
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(lockRetrySeconds, lockRetries))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, FS, goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == lockNotAvailable {
			return fmt.Errorf("migrate: another session keeps a table locked for more than %s; end it (pg_stat_activity names it), then start again: %w", lockTimeout, err)
		}
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}
