package pglocal_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/billonce/billonce/eventstore/pglocal"
	"github.com/jackc/pgx/v5"
)

// The test program run again with this variable set is a user of a server: it
// starts the one in the named data directory, prints its DSN and the word
// running, and stops it when its input ends.
const userEnv = "PGLOCAL_TEST_USER"

func TestMain(m *testing.M) {
	dir := os.Getenv(userEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	server, err := pglocal.Start(context.Background(), pglocal.Options{DataDir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("running", server.DSN("postgres"))
	bufio.NewReader(os.Stdin).ReadString('\n')
	if err := server.Stop(context.Background()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// user is another process that uses a server.
type user struct {
	t   *testing.T
	cmd *exec.Cmd
	in  interface{ Close() error }
	out *bufio.Reader
}

func newUser(t *testing.T, dataDir string) *user {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), userEnv+"="+dataDir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's signals go to a group
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &user{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
}

// dsn waits until the process says that its server runs.
func (u *user) dsn() string {
	u.t.Helper()
	line, _ := u.out.ReadString('\n')
	dsn, ok := strings.CutPrefix(strings.TrimSpace(line), "running ")
	if !ok {
		u.t.Fatalf("the other process said %q", line)
	}
	return dsn
}

// signal sends a signal to the process's group and waits for its end.
func (u *user) signal(sig syscall.Signal) {
	u.t.Helper()
	if err := syscall.Kill(-u.cmd.Process.Pid, sig); err != nil {
		u.t.Fatal(err)
	}
	u.cmd.Wait()
}

// finish lets the process stop its server.
func (u *user) finish() {
	u.t.Helper()
	u.in.Close()
	if err := u.cmd.Wait(); err != nil {
		u.t.Errorf("the other process: %v", err)
	}
}

// dataDir is an absent folder that every user of the machine could enter.
func dataDir(t *testing.T, name string) string {
	t.Helper()
	dir := openDir(t)
	data := filepath.Join(dir, name)
	t.Cleanup(func() {
		if err := pglocal.Remove(context.Background(), data); err != nil {
			t.Error(err)
		}
	})
	return data
}

// openDir is a temporary folder that every user of the machine can enter;
// those of testing.T are closed to all but its owner.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pglocal") //nolint:usetesting // t.TempDir is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func start(t *testing.T, opts pglocal.Options) *pglocal.Server {
	t.Helper()
	server, err := pglocal.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, server) })
	return server
}

func stop(t *testing.T, server *pglocal.Server) {
	t.Helper()
	if err := server.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// query runs one statement and returns the text of its one value.
func query(t *testing.T, dsn, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var text string
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// keep stores a word, and kept reads it.
func keep(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 'here'::text AS word"); err != nil {
		t.Fatal(err)
	}
}

func kept(t *testing.T, dsn string) string {
	t.Helper()
	return query(t, dsn, "SELECT word FROM kept")
}

// answers reports whether something listens where the DSN points.
func answers(t *testing.T, dsn string) bool {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// eventually waits for a condition, for at most a minute.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// postmasterPID is the pid in the cluster's pid file.
func postmasterPID(t *testing.T, dataDir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dataDir, "postgres", "cluster", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}
