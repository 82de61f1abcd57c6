package pglocal_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"weak"

	"github.com/billonce/billonce/eventstore/pglocal"
)

// A first start makes the cluster and a second finds its data, durable, in a
// path longer than any socket's and with a space in it.
func TestStartStopStart(t *testing.T) {
	t.Parallel()
	data := dataDir(t, filepath.Join("a folder with spaces", strings.Repeat("long", 30), "data [1]*"))
	var said strings.Builder
	opts := pglocal.Options{DataDir: data, Log: slog.New(slog.NewTextHandler(&said, nil))}

	server := start(t, opts)
	dsn, err := server.EnsureDatabase(t.Context(), "Bills 2026")
	if err != nil {
		t.Fatal(err)
	}
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "data_checksums": "on",
		"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200", "server_encoding": "UTF8",
	} {
		if got := query(t, dsn, "SHOW "+setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	keep(t, dsn)
	stop(t, server)
	stop(t, server) // a second call does nothing
	if answers(t, dsn) {
		t.Error("the server still listens after Stop")
	}

	server = start(t, opts)
	dsn, err = server.EnsureDatabase(t.Context(), "Bills 2026")
	if err != nil {
		t.Fatal(err)
	}
	if got := kept(t, dsn); got != "here" {
		t.Errorf("after the second start the row reads %q", got)
	}

	secret, err := os.ReadFile(filepath.Join(data, "postgres", "password"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(said.String(), strings.TrimSpace(string(secret))) {
		t.Error("the log holds the password")
	}
	if !strings.Contains(said.String(), "PostgreSQL started") {
		t.Errorf("the log tells of no start: %s", said.String())
	}
}

// The loopback is open to everyone on the machine, so the password decides.
func TestNobodyElseGetsIn(t *testing.T) {
	t.Parallel()
	data := dataDir(t, "data")
	server := start(t, pglocal.Options{DataDir: data})
	for _, path := range []string{"postgres", "postgres/password", "postgres/server.log"} {
		info, err := os.Stat(filepath.Join(data, path))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is open to others: %v", path, info.Mode())
		}
	}
	if got := query(t, server.DSN("postgres"), "SELECT count(*)::text FROM pg_hba_file_rules WHERE auth_method <> 'scram-sha-256'"); got != "0" {
		t.Errorf("%s of the server's rules let people in without a password", got)
	}
}

// The first of several users starts the server and the last one stops it.
func TestUsersShareOneServer(t *testing.T) {
	t.Parallel()
	data := dataDir(t, "data")
	var others []*process
	for range 3 {
		others = append(others, newProcess(t, data))
	}
	server := start(t, pglocal.Options{DataDir: data})
	for _, other := range others {
		if dsn := other.dsn(); dsn != server.DSN("postgres") {
			t.Errorf("another user has %s", dsn)
		}
	}
	others[0].finish()
	stop(t, server)
	others[1].finish()
	if !answers(t, server.DSN("postgres")) {
		t.Fatal("the server was stopped under its last user")
	}
	others[2].finish()
	if answers(t, server.DSN("postgres")) {
		t.Error("the last user left the server running")
	}
}

// Whoever starts first of several makes the database, and the others find it.
func TestOneDatabaseIsMadeByMany(t *testing.T) {
	t.Parallel()
	server := start(t, pglocal.Options{DataDir: dataDir(t, "data")})
	defer stop(t, server)
	for round := range 5 {
		var making sync.WaitGroup
		for range 8 {
			making.Go(func() {
				if _, err := server.EnsureDatabase(t.Context(), fmt.Sprint("shared", round)); err != nil {
					t.Error(err)
				}
			})
		}
		making.Wait()
	}
}

// What a kill -9 or a terminal's Ctrl-C leaves running is used by the next start
// and stopped with it.
func TestOrphanIsAdopted(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			data := dataDir(t, "data")
			other := newProcess(t, data)
			dsn := other.dsn()
			keep(t, dsn)
			other.signal(sig)
			if !answers(t, dsn) {
				t.Fatal("the server went with the process that started it")
			}

			server := start(t, pglocal.Options{DataDir: data})
			if got := server.DSN("postgres"); got != dsn {
				t.Errorf("a second server was started: %s", got)
			}
			if got := kept(t, dsn); got != "here" {
				t.Errorf("the row reads %q", got)
			}
			stop(t, server)
			if answers(t, dsn) {
				t.Error("the orphan still listens after Stop")
			}
		})
	}
}

// A kill -9 of everything, server included, costs a recovery and no data.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	data := dataDir(t, "data")
	other := newProcess(t, data)
	keep(t, other.dsn())
	if err := syscall.Kill(postmasterPID(t, data), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	other.signal(syscall.SIGKILL)

	server := start(t, pglocal.Options{DataDir: data})
	if got := kept(t, server.DSN("postgres")); got != "here" {
		t.Errorf("after the recovery the row reads %q", got)
	}
}

// An initdb that was cut off is begun again. On a busy machine it may be done
// before it is cut off, which is then tried anew.
func TestCutOffWhileMakingTheCluster(t *testing.T) {
	t.Parallel()
	for name, cutOff := range map[string]func(t *testing.T, data string){
		"by kill -9": func(t *testing.T, data string) {
			other := newProcess(t, data)
			eventually(t, "initdb has begun", func() bool { return halfMade(data) })
			other.signal(syscall.SIGKILL)
		},
		"by its context": func(t *testing.T, data string) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				server, err := pglocal.Start(ctx, pglocal.Options{DataDir: data})
				if err == nil {
					err = server.Stop(context.Background())
				}
				ended <- err
			}()
			eventually(t, "initdb has begun", func() bool { return halfMade(data) })
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Start says %v", err)
			}
			if halfMade(data) {
				t.Error("the half of a cluster was left")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 10 {
				data := dataDir(t, "data")
				cutOff(t, data)
				if exists(t, filepath.Join(data, "postgres", "cluster")) {
					continue
				}
				server := start(t, pglocal.Options{DataDir: data})
				if got := query(t, server.DSN("postgres"), "SELECT 'well'"); got != "well" {
					t.Errorf("the server says %q", got)
				}
				return
			}
			t.Fatal("it was never cut off in time to try anything")
		})
	}
}

// halfMade reports whether an initdb is at work, or was.
func halfMade(data string) bool {
	found, _ := filepath.Glob(filepath.Join(data, "postgres", "initdb-*", "*"))
	return len(found) > 0
}

// A pid file may name a process that is gone, or one that is something else by
// now.
func TestStalePIDFile(t *testing.T) {
	t.Parallel()
	data := dataDir(t, "data")
	server := start(t, pglocal.Options{DataDir: data})
	pidFile := filepath.Join(data, "postgres", "cluster", "postmaster.pid")
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	info, err := os.Stat(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	stop(t, server)

	bystander := exec.Command("sleep", "600")
	if os.Geteuid() == 0 {
		// PostgreSQL itself sees through a pid of another user's process.
		bystander.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { bystander.Process.Kill(); bystander.Wait() }()
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}

	for name, pid := range map[string]int{"gone": gone.Process.Pid, "another program's": bystander.Process.Pid} {
		if err := os.WriteFile(pidFile, fmt.Appendf(nil, "%d\n%s", pid, rest), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(pidFile, int(owner.Uid), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
		server := start(t, pglocal.Options{DataDir: data})
		if got := query(t, server.DSN("postgres"), "SELECT 'well'"); got != "well" {
			t.Errorf("pid %s: the server says %q", name, got)
		}
		stop(t, server)
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the bystander was harmed: %v", err)
	}
}

func TestTakenPort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	server := start(t, pglocal.Options{DataDir: dataDir(t, "data"), Port: port})
	if got := query(t, server.DSN("postgres"), "SHOW port"); got == fmt.Sprint(port) {
		t.Errorf("the server says it listens on the taken port %s", got)
	}
}

// As root, PostgreSQL runs as somebody else, also where that user cannot enter
// the data directory; as anyone else it runs as that user.
func TestWhoItRunsAs(t *testing.T) {
	t.Parallel()
	closed := filepath.Join(openDir(t), "home")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(closed, "data")
	server := start(t, pglocal.Options{DataDir: data, User: "nobody"})
	info, err := os.Stat(fmt.Sprintf("/proc/%d", postmasterPID(t, data)))
	if err != nil {
		if info, err = os.Stat(filepath.Join(data, "postgres", "cluster", "postmaster.pid")); err != nil {
			t.Fatal(err)
		}
	}
	uid := info.Sys().(*syscall.Stat_t).Uid
	want := strconv.Itoa(os.Geteuid())
	if want == "0" {
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		want = nobody.Uid
	}
	if got := fmt.Sprint(uid); got != want {
		t.Errorf("the server runs as uid %s, want %s", got, want)
	}
	place, err := filepath.EvalSymlinks(filepath.Join(data, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if err := pglocal.Remove(t.Context(), data); err == nil {
		t.Error("the data of a server in use was removed")
	}
	stop(t, server)
	if err := pglocal.Remove(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	if exists(t, place) || exists(t, filepath.Join(data, "postgres")) {
		t.Error("Remove left the data")
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	empty, old, broken := openDir(t), openDir(t), openDir(t)
	program := func(dir, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program(old, "postgres", "echo 'postgres (PostgreSQL) 13.4 (Debian 13.4-1)'")
	program(old, "initdb", "exit 1")
	program(broken, "postgres", "exit 1")
	program(broken, "initdb", "exit 1")

	for dir, want := range map[string]string{empty: "no initdb there", old: "13.4 is too old", broken: "cannot run it"} {
		_, err := pglocal.Start(t.Context(), pglocal.Options{DataDir: dataDir(t, "data"), BinDir: dir})
		if !errors.Is(err, pglocal.ErrNoServer) {
			t.Fatalf("Start says %v", err)
		}
		for _, part := range []string{dir, want, "apt-get install postgresql", pglocal.BinDirEnv} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the message lacks %q: %v", part, err)
			}
		}
	}
}

// Data is only given to binaries that can read it.
func TestDataOfAnotherVersion(t *testing.T) {
	t.Parallel()
	data := dataDir(t, "data")
	stop(t, start(t, pglocal.Options{DataDir: data}))
	version := filepath.Join(data, "postgres", "cluster", "PG_VERSION")
	if err := os.WriteFile(version, []byte("99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := pglocal.Start(t.Context(), pglocal.Options{DataDir: data})
	if !errors.Is(err, pglocal.ErrNoServer) || !strings.Contains(err.Error(), "written by version 99") {
		t.Errorf("Start says %v", err)
	}
}

// Damaged data of tests is thrown away; damaged data of the service never is.
func TestDamagedData(t *testing.T) {
	t.Parallel()
	for _, volatile := range []bool{true, false} {
		t.Run(fmt.Sprintf("volatile %t", volatile), func(t *testing.T) {
			t.Parallel()
			data := dataDir(t, "data")
			opts := pglocal.Options{DataDir: data, Volatile: volatile}
			stop(t, start(t, opts))
			controls, _ := filepath.Glob(filepath.Join(data, "postgres", "*", "global", "pg_control"))
			if len(controls) != 1 {
				t.Fatalf("found %d control files", len(controls))
			}
			if err := os.Remove(controls[0]); err != nil {
				t.Fatal(err)
			}
			server, err := pglocal.Start(t.Context(), opts)
			if volatile {
				if err != nil {
					t.Fatal(err)
				}
				stop(t, server)
				if server, err := pglocal.Start(t.Context(), pglocal.Options{DataDir: data}); err == nil {
					stop(t, server)
					t.Error("a service was given a database without durability")
				}
				return
			}
			if err == nil {
				stop(t, server)
				t.Fatal("a damaged cluster was started")
			}
			if !strings.Contains(err.Error(), "pg_control") {
				t.Errorf("the message does not say what is wrong: %v", err)
			}
			if !exists(t, filepath.Join(data, "postgres", "cluster", "base")) {
				t.Error("durable data was thrown away")
			}
		})
	}
}

// A program that keeps no more than the DSN uses the server all the same.
func TestForgottenServer(t *testing.T) {
	t.Parallel()
	data := dataDir(t, "data")
	begin := func() weak.Pointer[pglocal.Server] {
		server, err := pglocal.Start(t.Context(), pglocal.Options{DataDir: data})
		if err != nil {
			t.Fatal(err)
		}
		return weak.Make(server)
	}
	forgotten := begin()
	runtime.GC()
	server := forgotten.Value()
	if server == nil {
		t.Fatal("a server in use was collected, and its lock with it")
	}
	stop(t, server)
}

// A watcher stops what nobody uses any more, and nothing before.
func TestStopWhenIdle(t *testing.T) {
	t.Parallel()
	data := dataDir(t, "data")
	other := newProcess(t, data)
	dsn := other.dsn()
	server := start(t, pglocal.Options{DataDir: data})
	watched := func() bool {
		is, err := server.Watched()
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	if watched() {
		t.Error("watched before anybody watches")
	}
	ended := make(chan error, 1)
	go func() { ended <- pglocal.StopWhenIdle(t.Context(), data, 10*time.Millisecond) }()
	eventually(t, "it is watched", watched)
	if err := pglocal.StopWhenIdle(t.Context(), data, 0); err != nil {
		t.Errorf("a second watcher: %v", err)
	}
	stop(t, server)
	if !answers(t, dsn) {
		t.Fatal("stopped under its user")
	}
	other.signal(syscall.SIGKILL)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if answers(t, dsn) {
		t.Error("the idle server still listens")
	}
}
