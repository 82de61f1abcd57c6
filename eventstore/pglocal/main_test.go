package pglocal_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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

// The test program does other work when it is run again with one of these set.
const (
	// userEnv: use the server in the named data directory, say running and its
	// DSN, and stop when the input ends.
	userEnv = "PGLOCAL_TEST_USER"
	// sweeperEnv: when the input ends, remove the named folder and all servers in it.
	sweeperEnv = "PGLOCAL_TEST_SWEEPER"
)

// root is where the tests keep everything. It is open to the user that root's
// servers run as, which the folders of testing.T are not.
var root string

func TestMain(m *testing.M) {
	if dir := os.Getenv(userEnv); dir != "" {
		os.Exit(use(dir))
	}
	if dir := os.Getenv(sweeperEnv); dir != "" {
		os.Exit(sweep(dir))
	}
	os.Exit(run(m))
}

// run leaves nothing behind, also when it is killed: its end is the end of the
// sweeper's input.
func run(m *testing.M) int {
	var err error
	if root, err = os.MkdirTemp("", "pglocal-test-"); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := os.Chmod(root, 0o755); err != nil {
		fmt.Println(err)
		return 1
	}
	sweeper := exec.Command(os.Args[0])
	sweeper.Dir = "/"
	sweeper.Env = append(os.Environ(), sweeperEnv+"="+root)
	sweeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := sweeper.StdinPipe()
	if err == nil {
		err = sweeper.Start()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	code := m.Run()
	in.Close()
	if err := sweeper.Wait(); err != nil {
		fmt.Println("servers are left behind:", err)
		return 1
	}
	return code
}

func use(dataDir string) int {
	server, err := pglocal.Start(context.Background(), pglocal.Options{DataDir: dataDir})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("running", server.DSN("postgres"))
	io.Copy(io.Discard, os.Stdin)
	if err := server.Stop(context.Background()); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func sweep(root string) int {
	io.Copy(io.Discard, os.Stdin)
	deadline := time.Now().Add(time.Minute)
	for {
		err := removeAll(root)
		if err == nil {
			return 0
		}
		if time.Now().After(deadline) { // a server's last user, or a cut-off initdb, may still have been at it
			return 1
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// removeAll stops the servers below root and removes it.
func removeAll(root string) error {
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Base(path) == "postgres.lock" {
			err = pglocal.Remove(context.Background(), filepath.Dir(path))
		}
		return err
	})
	if err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// process is another process that uses a server.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  interface{ Close() error }
	out *bufio.Reader
}

func newProcess(t *testing.T, dataDir string) *process {
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
	return &process{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
}

// dsn waits until the process says that its server runs.
func (p *process) dsn() string {
	p.t.Helper()
	line, _ := p.out.ReadString('\n')
	dsn, ok := strings.CutPrefix(strings.TrimSpace(line), "running ")
	if !ok {
		p.t.Fatalf("the other process said %q", line)
	}
	return dsn
}

// signal sends a signal to the process's group and waits for its end.
func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil {
		p.t.Fatal(err)
	}
	p.cmd.Wait()
}

// finish lets the process stop its server.
func (p *process) finish() {
	p.t.Helper()
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the other process: %v", err)
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

// openDir is a folder that every user of the machine can enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(root, "") //nolint:usetesting // t.TempDir is closed to others
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
