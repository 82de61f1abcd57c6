package pglocal

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Superuser is the role that owns the cluster and that [Server.DSN] names.
const Superuser = "billonce"

// cluster is one set of PostgreSQL data and whom it belongs to.
type cluster struct {
	home     string
	who      account
	bin      binaries
	password string
	volatile bool
}

func clusterDir(home string, volatile bool) string {
	if volatile {
		return filepath.Join(home, "volatile")
	}
	return filepath.Join(home, "cluster")
}

func (c cluster) dir() string     { return clusterDir(c.home, c.volatile) }
func (c cluster) logPath() string { return filepath.Join(c.home, "server.log") }

// writtenBy returns the major version that wrote the data, 0 if there is none yet.
func writtenBy(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s holds no version: %w", filepath.Join(dir, "PG_VERSION"), err)
	}
	return major, nil
}

// initialise makes the cluster, in a folder of another name until it is whole.
func (c cluster) initialise(ctx context.Context) error {
	entries, err := os.ReadDir(c.home)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "initdb-") {
			// An initdb that outlived its parent may still write here; the next sweep gets the rest.
			os.RemoveAll(filepath.Join(c.home, entry.Name()))
		}
	}
	dir, err := os.MkdirTemp(c.home, "initdb-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if c.who.other {
		if err := os.Lchown(dir, c.who.uid, c.who.gid); err != nil {
			return err
		}
	}

	args := []string{
		"--pgdata=" + dir, "--username=" + Superuser, "--pwfile=" + filepath.Join(c.home, "password"),
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C",
	}
	if c.volatile {
		args = append(args, "--no-sync")
	} else {
		args = append(args, "--data-checksums")
	}
	cmd := exec.CommandContext(ctx, c.bin.initdb(), args...)
	cmd.Dir = c.home
	cmd.Env = serverEnviron()
	cmd.SysProcAttr = c.who.attributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("initdb: %w: %s", err, lastLines(said.String()))
	}
	if err := os.Rename(dir, c.dir()); err != nil {
		return err
	}
	return syncDir(c.home)
}

// ensurePassword reads the cluster's password, or makes one for a cluster that
// is still to be made.
func (c *cluster) ensurePassword(isNew bool) error {
	path := filepath.Join(c.home, "password")
	text, err := os.ReadFile(path)
	if err == nil && len(bytes.TrimSpace(text)) > 0 {
		c.password = string(bytes.TrimSpace(text))
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !isNew {
		return fmt.Errorf("%s is missing, and the data cannot be reached without it", path)
	}
	c.password = rand.Text()
	f, err := os.CreateTemp(c.home, "password-") // mode 0600
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.who.give(f); err != nil {
		return err
	}
	if _, err := f.WriteString(c.password + "\n"); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// arguments are the server's settings. They stand on the command line so that
// they are those of this version of the program, whatever initdb wrote.
func (c cluster) arguments(port, connections int) []string {
	args := []string{"-D", c.dir()}
	set := func(name string, value any) { args = append(args, "-c", fmt.Sprintf("%s=%v", name, value)) }

	set("listen_addresses", "127.0.0.1")
	set("port", port)
	set("unix_socket_directories", "")
	set("max_connections", connections)
	set("cluster_name", "billonce")

	durable := "on"
	if c.volatile {
		durable = "off"
	}
	set("fsync", durable)
	set("full_page_writes", durable)
	set("synchronous_commit", "on")

	set("shared_buffers", "128MB")
	set("jit", "off") // short statements; compiling them costs more than it saves
	set("timezone", "UTC")

	// Errors of statements go to the client that made them; the file tells of the
	// server's own life, and quotes no statement and no row.
	set("log_timezone", "UTC")
	set("log_destination", "stderr")
	set("logging_collector", "off")
	set("log_min_messages", "log")
	set("log_min_error_statement", "panic")
	set("log_error_verbosity", "terse")
	return args
}

// serverEnviron is our environment without what would steer PostgreSQL or
// translate its messages.
func serverEnviron() []string {
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "PG") || strings.HasPrefix(entry, "LC_") || strings.HasPrefix(entry, "LANG")
	})
	return append(env, "LC_ALL=C")
}

// lastLines is the end of what a program said, on one line.
func lastLines(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], "; ")
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
