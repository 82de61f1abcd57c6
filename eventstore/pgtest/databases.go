package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	"github.com/billonce/billonce/migrations"
	"github.com/jackc/pgx/v5"
)

// Names of databases: a test's is the prefix, its program's owner and a number; a
// template's is the prefix and the digest of its migrations.
const (
	testPrefix     = "billonce_test_"
	templatePrefix = "billonce_template_"
	unfinished     = "_unfinished"
	// keptTemplates is how many unused templates stay: those of other branches.
	keptTemplates = 3
)

// Advisory locks are named by text. They belong to the session and the database
// that s.dsn names.
const (
	lockExclusive = `SELECT pg_advisory_lock(hashtextextended($1, 0))`
	lockShared    = `SELECT pg_advisory_lock_shared(hashtextextended($1, 0))`
	tryExclusive  = `SELECT pg_try_advisory_lock(hashtextextended($1, 0))`
	unlock        = `SELECT pg_advisory_unlock(hashtextextended($1, 0))`
)

// making is the name of the lock under which a template is made; the template's
// own name is that of the lock of its users.
func making(template string) string { return template + " is being made" }

func (s *server) newName() string {
	return fmt.Sprintf("%s%s_%d", testPrefix, s.owner, s.count.Add(1))
}

// makeTemplate returns the template of this program's migrations, which it makes
// unless another program has.
func (s *server) makeTemplate(ctx context.Context) (string, error) {
	digest, err := digestOf(migrations.FS)
	if err != nil {
		return "", err
	}
	template := templatePrefix + digest
	if _, err := s.holder.Exec(ctx, lockShared, template); err != nil { // until this program ends
		return "", err
	}
	if _, err := s.holder.Exec(ctx, lockExclusive, making(template)); err != nil {
		return "", err
	}
	defer s.holder.Exec(ctx, unlock, making(template))

	var exists bool
	err = s.holder.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, template).Scan(&exists)
	if err != nil || exists {
		return template, err
	}
	if err := s.migrateTemplate(ctx, template); err != nil {
		return "", fmt.Errorf("make the template: %w", err)
	}
	return template, nil
}

// migrateTemplate makes the template under another name until it is whole.
func (s *server) migrateTemplate(ctx context.Context, template string) error {
	half := template + unfinished
	if err := s.drop(ctx, half); err != nil {
		return err
	}
	if err := s.clone(ctx, half, "template0"); err != nil {
		return err
	}
	if err := migrations.Up(ctx, withDatabase(s.dsn, half)); err != nil {
		return err
	}
	// A template that somebody is connected to cannot be cloned.
	if err := s.command(ctx, `ALTER DATABASE `+name(half)+` ALLOW_CONNECTIONS false`); err != nil {
		return err
	}
	return s.command(ctx, `ALTER DATABASE `+name(half)+` RENAME TO `+name(template))
}

// clone makes a database. Copying its files takes a third of the time of writing
// them to the log, where the disk is not waited for.
func (s *server) clone(ctx context.Context, database, template string) error {
	sql := `CREATE DATABASE ` + name(database) + ` TEMPLATE ` + name(template)
	if s.version >= 150000 && !s.fsync {
		sql += ` STRATEGY file_copy`
	}
	if err := s.command(ctx, sql); err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	return nil
}

func (s *server) drop(ctx context.Context, database string) error {
	if err := s.command(ctx, `DROP DATABASE IF EXISTS `+name(database)+` WITH (FORCE)`); err != nil {
		return fmt.Errorf("drop database: %w", err)
	}
	return nil
}

// sweep drops what killed test programs left, and templates out of use.
func (s *server) sweep(ctx context.Context) error {
	rows, err := s.holder.Query(ctx,
		`SELECT datname FROM pg_database WHERE starts_with(datname, $1) OR starts_with(datname, $2) ORDER BY oid DESC`,
		testPrefix, templatePrefix)
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	templates := 0
	for _, database := range found {
		lock := database
		switch {
		case strings.HasPrefix(database, testPrefix):
			lock = database[:strings.LastIndex(database, "_")]
		case strings.HasSuffix(database, unfinished):
			lock = making(strings.TrimSuffix(database, unfinished))
		default:
			if templates++; templates <= keptTemplates {
				continue
			}
		}
		if lock == testPrefix+s.owner {
			continue
		}
		if err := s.dropUnheld(ctx, database, lock); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) dropUnheld(ctx context.Context, database, lock string) error {
	var free bool
	if err := s.holder.QueryRow(ctx, tryExclusive, lock).Scan(&free); err != nil || !free {
		return err
	}
	defer s.holder.Exec(ctx, unlock, lock)
	return s.drop(ctx, database)
}

// digestOf is the digest of all files' names and contents.
func digestOf(files fs.FS) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:8]), err
}

func name(database string) string { return pgx.Identifier{database}.Sanitize() }

// withDatabase is the connection string with another database in it.
func withDatabase(dsn, database string) string {
	u, ok := asURL(dsn)
	if !ok {
		return dsn + " dbname=" + database // of two, the last one counts
	}
	u.Path = "/" + database
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String()
}

// withAddress is the connection string with another host and port in it, and
// without TLS.
func withAddress(dsn, host, port string) string {
	u, ok := asURL(dsn)
	if !ok {
		return dsn + " host=" + host + " port=" + port + " sslmode=disable"
	}
	u.Host = host + ":" + port
	query := u.Query()
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	return u.String()
}

func asURL(dsn string) (*url.URL, bool) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return nil, false
	}
	u, err := url.Parse(dsn)
	return u, err == nil
}
