package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/console"
)

// shell is what a command works with: its streams, and the ways to the service
// and to its database.
type shell struct {
	Streams
	ctx       context.Context
	line      *commandLine
	customers []byte
}

// client is a client of the service that the command line names.
func (s *shell) client() (*client.Client, error) {
	token, set := os.LookupEnv("BILLINGCTL_TOKEN")
	if set && strings.TrimSpace(token) == "" {
		return nil, usage("BILLINGCTL_TOKEN is set but blank; unset it for a service without tokens")
	}
	c, err := client.New(s.line.URL, token)
	if err != nil {
		return nil, usageError{fmt.Errorf("--url: %w", err)}
	}
	return c, nil
}

func databaseURL() (string, error) {
	dsn := os.Getenv("DATABASE_URL")
	if strings.TrimSpace(dsn) == "" {
		return "", usage("DATABASE_URL is needed: this works on the service's database, such as postgres://user:password@host:5432/billing")
	}
	return dsn, nil
}

// database opens the service's database. Close the pool.
func (s *shell) database() (*pgxpool.Pool, error) {
	dsn, err := databaseURL()
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, usage("DATABASE_URL cannot be read; it must be a URL such as postgres://user:password@host:5432/billing") // the parser's own words may quote the password
	}
	config.MaxConns = 8
	for name, value := range map[string]string{"application_name": "billingctl", "default_transaction_isolation": "read committed", "jit": "off"} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(s.ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := pool.Ping(s.ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open the database: %w", errors.Unwrap(err))
	}
	return pool, nil
}

// actor names whoever runs the command, for the record.
func actor() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return "billingctl/" + name
}

// printf prints a line of the answer.
func (s *shell) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(s.Out, format, args...)
	return err
}

// tables prints tables with a blank line between them, leaving out empty ones.
func (s *shell) tables(all ...*console.Table) error {
	between := ""
	for _, table := range all {
		if table.Empty() {
			continue
		}
		if err := s.printf("%s", between); err != nil {
			return err
		}
		if err := table.Write(s.Out, ""); err != nil {
			return err
		}
		between = "\n"
	}
	return nil
}

func (s *shell) progress() console.Progress { return console.NewProgress(s.Err) }

func (s *shell) asJSON() bool { return s.line.Output == "json" }

// figure is one of what a command came to.
type figure struct {
	name  string
	value any
}

// conclude prints what a command came to in its last line, for scripts: as
// name: figure=value, or as a JSON object in a line of its own.
func (s *shell) conclude(name string, figures ...figure) error {
	var line strings.Builder
	if !s.asJSON() {
		line.WriteString(name + ":")
		for _, f := range figures {
			fmt.Fprintf(&line, " %s=%v", f.name, f.value)
		}
		return s.printf("%s\n", line.String())
	}
	separator := "{"
	for _, f := range figures {
		value, err := json.Marshal(f.value)
		if err != nil {
			return fmt.Errorf("print JSON: %w", err)
		}
		fmt.Fprintf(&line, "%s%q:%s", separator, f.name, value)
		separator = ","
	}
	return s.printf("%s}\n", line.String())
}

// beside is s for what is said while standard output is a file's.
func (s *shell) beside() *shell {
	other := *s
	other.Out = s.Err
	return &other
}

// done says in a sentence that something is done.
func (s *shell) done(format string, args ...any) error {
	if s.asJSON() {
		return s.conclude("", figure{"done", fmt.Sprintf(format, args...)})
	}
	return s.printf(format+"\n", args...)
}

// show prints a document as it came, or as table makes of it.
func show[T any](s *shell, document json.RawMessage, table func(T) error) error {
	if s.asJSON() {
		return console.JSON(s.Out, document)
	}
	var v T
	if err := json.Unmarshal(document, &v); err != nil {
		return fmt.Errorf("read the answer of billingd: %w", err)
	}
	return table(v)
}
