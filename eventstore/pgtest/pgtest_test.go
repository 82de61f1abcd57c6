package pgtest_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/eventstore/pglocal"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/migrations"
	"github.com/jackc/pgx/v5"
)

func TestEachTestHasADatabase(t *testing.T) {
	t.Parallel()
	outer := pgtest.Pool(t)
	var gone []string
	t.Run("side by side", func(t *testing.T) {
		for i := range 6 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				pool := pgtest.Pool(t)
				gone = append(gone, pool.Config().ConnConfig.Database)
				t.Parallel()
				if n := number(t, pool, `SELECT count(*) FROM goose_db_version WHERE is_applied`); n < 2 {
					t.Errorf("the database is not migrated: %d steps", n)
				}
				if _, err := pool.Exec(t.Context(), `CREATE TABLE mine AS SELECT $1::int AS i`, i); err != nil {
					t.Errorf("another test's table is here: %v", err)
				}
				if got := number(t, pool, `SELECT i FROM mine`); got != i {
					t.Errorf("read %d, wrote %d", got, i)
				}
			})
		}
	})
	if n := number(t, outer, `SELECT count(*) FROM pg_database WHERE datname = ANY($1)`, gone); n != 0 || len(gone) != 6 {
		t.Errorf("of the %d tests' databases %d are left", len(gone), n)
	}
}

func TestDSNAndPoolAreOneDatabase(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if again := pgtest.DSN(t); again != dsn {
		t.Errorf("a second call gives another database: %s, %s", dsn, again)
	}
	if _, err := pgtest.Pool(t).Exec(t.Context(), `CREATE TABLE here ()`); err != nil {
		t.Fatal(err)
	}
	if n := number(t, connect(t, dsn), `SELECT count(*) FROM here`); n != 0 {
		t.Errorf("read %d rows", n)
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	first, second := pgtest.Empty(t), pgtest.Empty(t)
	if first == second {
		t.Error("two empty databases are one")
	}
	if n := number(t, connect(t, first), `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`); n != 0 {
		t.Errorf("an empty database has %d tables", n)
	}
	if err := migrations.Up(t.Context(), first); err != nil {
		t.Errorf("an empty database cannot be migrated: %v", err)
	}
}

// Test programs share a server. What a killed one leaves is dropped by the next,
// which leaves alone what the living have, and the server ends with the last.
func TestKilledPrograms(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	first, second := newProgram(t, dir), newProgram(t, dir)
	dsn1, dsn2 := first.dsn(), second.dsn()
	if address(t, dsn1) != address(t, dsn2) {
		t.Errorf("two programs have two servers: %s, %s", address(t, dsn1), address(t, dsn2))
	}
	first.kill()
	third := newProgram(t, dir)
	present := number(t, connect(t, third.dsn()), `SELECT count(*) FROM pg_database WHERE datname LIKE 'billonce\_test\_%'`)
	if present != 2 {
		t.Errorf("there are %d databases of tests, want those of the two living programs", present)
	}
	if n := number(t, connect(t, dsn2), `SELECT count(*) FROM goose_db_version`); n == 0 {
		t.Error("the living program's database was emptied")
	}
	second.kill()
	third.kill()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		conn, err := net.Dial("tcp", address(t, dsn1))
		if err != nil {
			return
		}
		conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("nobody uses the server, and it still listens after a minute")
		}
	}
}

// A machine without PostgreSQL fails the tests, and says what to do.
func TestNoServer(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestEmpty$", "-test.v")
	cmd.Env = append(withoutURL(), "PGTEST_DIR="+openDir(t), pglocal.BinDirEnv+"="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("the tests passed without a server:\n%s", out)
	}
	for _, part := range []string{"--- FAIL: TestEmpty", "TEST_DATABASE_URL", "apt-get install postgresql"} {
		if !strings.Contains(string(out), part) {
			t.Errorf("the output lacks %q:\n%s", part, out)
		}
	}
}

// What benchmarks measure is the service's own kind of server.
func TestBenchmarksGetADurableServer(t *testing.T) {
	t.Parallel()
	var fsync string
	testing.Benchmark(func(b *testing.B) {
		if err := pgtest.Pool(b).QueryRow(b.Context(), `SHOW fsync`).Scan(&fsync); err != nil {
			b.Error(err)
		}
	})
	if fsync != "on" {
		t.Errorf("fsync is %q", fsync)
	}
}

// The test program run again with this variable set makes a database, prints its
// DSN, and does nothing more until it is killed.
const programEnv = "PGTEST_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) == "" {
		os.Exit(m.Run())
	}
	testing.Main(func(pat, str string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "Program", F: func(t *testing.T) {
		fmt.Println("dsn", pgtest.DSN(t))
		select {}
	}}}, nil, nil)
}

type program struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Reader
}

func newProgram(t *testing.T, dir string) *program {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(withoutURL(), programEnv+"=1", "PGTEST_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: cmd, out: bufio.NewReader(out)}
	t.Cleanup(p.kill)
	return p
}

func (p *program) dsn() string {
	p.t.Helper()
	line, _ := p.out.ReadString('\n')
	dsn, ok := strings.CutPrefix(strings.TrimSpace(line), "dsn ")
	if !ok {
		p.t.Fatalf("the program said %q", line)
	}
	return dsn
}

func (p *program) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// withoutURL is this program's environment without a server of its own.
func withoutURL() []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "TEST_DATABASE_URL=") {
			env = append(env, entry)
		}
	}
	return env
}

// openDir is a temporary folder that the server's user can enter, also when we
// are root.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgtest") //nolint:usetesting // t.TempDir is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func address(t *testing.T, dsn string) string {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	return conn
}

// querier is a pool or a connection.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func number(t *testing.T, db querier, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
