package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS is the schema: one SQL file a step, numbered.
//
//go:embed *.sql
var FS embed.FS

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
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}
