package ledger

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed schema/*.sql
var schema embed.FS

// How long one proxy waits for another's migration, and one statement for a
// table lock. The session lock is another than the service's, which may migrate
// the same database at the same time.
const (
	migrationLock    = 7311
	lockRetrySeconds = 1
	lockRetries      = 60
	tableLockTimeout = "15s"
)

// Migrate brings the schema spendproxy of the database at dsn to this version.
// Any number of proxies may call it at once; each step is applied once.
func Migrate(ctx context.Context, dsn string) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return errors.New("migrate: the database URL cannot be read") // the parser's own words may quote the password
	}
	config.RuntimeParams["lock_timeout"] = tableLockTimeout
	if err := createSchema(ctx, config); err != nil {
		return fmt.Errorf("migrate: create the schema: %w", err)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	db.SetMaxOpenConns(2) // one holds the advisory lock, one works
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(migrationLock), lock.WithLockTimeout(lockRetrySeconds, lockRetries))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	steps, err := fs.Sub(schema, "schema")
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, steps,
		goose.WithTableName("spendproxy.goose_db_version"), goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// createSchema makes the schema in which goose's own table lies too. Two that
// make it at once would clash in spite of IF NOT EXISTS.
func createSchema(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, 0)`, migrationLock); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS spendproxy`)
		return err
	})
}
