package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore/pglocal"
)

// standby is a second PostgreSQL that follows the first by streaming
// replication.
type standby struct {
	t    *testing.T
	port string
	conn *pgx.Conn
}

// connect opens a connection to a server, and closes it at the end.
func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func read[T any](t *testing.T, conn *pgx.Conn, query string) (value T) {
	t.Helper()
	if err := conn.QueryRow(context.WithoutCancel(t.Context()), query).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

// followed makes a standby of the server, in a folder beside its data, as the
// user that it runs as.
func followed(t *testing.T, dsn string) *standby {
	t.Helper()
	primary := connect(t, dsn)
	data, programs := read[string](t, primary, `SHOW data_directory`), read[string](t, primary, `SELECT setting FROM pg_config WHERE name = 'BINDIR'`)
	if _, err := os.Stat(filepath.Join(programs, "pg_basebackup")); err != nil {
		t.Fatalf("PostgreSQL's client programs are to be installed beside the server: %v", err)
	}
	info, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	runs := &syscall.SysProcAttr{Setsid: true}
	if owner := info.Sys().(*syscall.Stat_t); int(owner.Uid) != os.Geteuid() {
		runs.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
	folder := filepath.Join(filepath.Dir(data), "standby")
	var said bytes.Buffer
	run := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(programs, program), args...)
		cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = filepath.Dir(data), runs, &said, &said
		return cmd
	}
	if err := run("pg_basebackup", "--dbname="+dsn, "--pgdata="+folder, "--write-recovery-conf", "--checkpoint=fast", "--no-sync").Run(); err != nil {
		t.Fatalf("pg_basebackup: %v\n%s", err, said.String())
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(free.Addr().String())
	_ = free.Close()
	server := run("postgres", "-D", folder, "-c", "listen_addresses=127.0.0.1", "-c", "port="+port, "-c", "unix_socket_directories=",
		"-c", "max_connections="+read[string](t, primary, `SHOW max_connections`), "-c", "fsync=off", "-c", "shared_buffers=32MB")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT)
		_ = server.Wait()
	})
	at, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	at.Host = "127.0.0.1:" + port
	s := &standby{t: t, port: port}
	awaitFor(t, time.Minute, "the standby takes questions", func() bool {
		s.conn, err = pgx.Connect(t.Context(), at.String())
		return err == nil
	}, func() string { return fmt.Sprint(err) })
	t.Cleanup(func() { _ = s.conn.Close(context.Background()) })
	return s
}

// hasAll waits until the standby has all facts of the primary.
func (s *standby) hasAll(facts int) {
	s.t.Helper()
	awaitFor(s.t, time.Minute, "the standby has caught up", func() bool {
		return read[int](s.t, s.conn, `SELECT count(*) FROM events`) == facts
	})
	if n := read[int](s.t, s.conn, `SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'`); n != 1 {
		s.t.Errorf("%d streams from the primary", n)
	}
}

// lag cuts the stream: what the primary commits from here the standby never
// gets.
func (s *standby) lag() {
	s.t.Helper()
	for _, statement := range []string{`ALTER SYSTEM SET primary_conninfo = ''`, `SELECT pg_reload_conf()`} {
		if _, err := s.conn.Exec(s.t.Context(), statement); err != nil {
			s.t.Fatal(err)
		}
	}
	awaitFor(s.t, time.Minute, "the stream is cut", func() bool {
		return read[int](s.t, s.conn, `SELECT count(*) FROM pg_stat_wal_receiver`) == 0
	})
}

// promote makes the standby the primary.
func (s *standby) promote() {
	s.t.Helper()
	if !read[bool](s.t, s.conn, `SELECT pg_promote(true, 120)`) {
		s.t.Fatal("the standby was not promoted")
	}
}

// TestPromotedStandby is a failover that loses facts, done: two servers with
// streaming replication, of which the second falls behind and is promoted when
// the first is gone. The services have both addresses, as in production, and
// find themselves on the second without a restart. They notice by its timeline,
// collect nothing, rebuild what Stripe has and the log has lost, and go on once
// an operator has adopted the database. Each bill is charged once.
func TestPromotedStandby(t *testing.T) {
	h := newHouse(t)
	dir := t.TempDir()
	primary, err := pglocal.Start(t.Context(), pglocal.Options{DataDir: dir, Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(primary.Stop(context.Background()), pglocal.Remove(context.Background(), dir)); err != nil {
			t.Errorf("remove PostgreSQL: %v", err)
		}
	})
	dsn, err := primary.EnsureDatabase(t.Context(), "failover")
	if err != nil {
		t.Fatal(err)
	}
	second := followed(t, dsn)
	both, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	both.Host, both.RawQuery = both.Host+",127.0.0.1:"+second.port, both.RawQuery+"&target_session_attrs=read-write"
	h.dsn = both.String()

	replicas := []*replica{h.start(operated(t)), h.start(operated(t))}
	before, after := []string{"b0", "b1", "b2"}, []string{"a0", "a1", "a2", "a3"}
	for _, id := range append(append([]string{"late"}, before...), after...) {
		replicas[0].command("register-customer", registerBody(id, "pm_card_visa"))
	}
	billed := func() int { return h.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1'`) }
	for _, id := range before {
		replicas[0].command("charge-billing?wait=30s", chargeBody(id))
	}
	await(t, "the first half is billed", func() bool { return billed() == len(before) })
	second.hasAll(h.count(`SELECT count(*) FROM events`))
	second.lag()

	for i, id := range after {
		replicas[i%2].command("charge-billing?wait=30s", chargeBody(id))
	}
	await(t, "the second half is billed", func() bool { return billed() == len(before)+len(after) })
	posts := h.posts()
	if err := primary.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	second.promote()

	replicas[0].command("charge-billing", chargeBody("late")) // waits
	for _, r := range replicas {
		r.unready("the server was promoted or recovered: timeline 2, was 1; nothing is collected until it is adopted (billingctl adopt)")
	}
	if n := billed(); n < len(before) || n > len(before)+len(after) {
		t.Errorf("%d bills are billed on the promoted server", n)
	}
	for i, id := range after {
		var a answer
		await(t, id+" is known again", func() bool {
			_ = json.Unmarshal([]byte(replicas[i%2].command("charge-billing?wait=5s", chargeBody(id))), &a)
			return a.Bill.Status == "paid"
		}, func() string { return fmt.Sprintf("%+v", a) })
	}
	if n := h.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND (payload->>'recovered')::bool AND payload->>'customer_id' = ANY($1)`, after); n != len(after) {
		t.Errorf("%d facts are marked recovered, want %d", n, len(after))
	}
	if now := h.posts(); now != posts {
		t.Errorf("%d POSTs went to Stripe before the database was adopted", now-posts)
	}
	replicas[1].adopt()
	for _, r := range replicas {
		r.isReady()
	}
	for _, id := range append(append([]string{"late"}, before...), after...) {
		await(t, id+" is paid", func() bool { return replicas[0].bill(id) == "paid" })
		if charges, facts := h.charges(id), h.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND payload->>'customer_id' = $1`, id); len(charges) != 1 || facts != 1 {
			t.Errorf("%s has the charges %v and %d billed facts", id, charges, facts)
		}
	}
	if n := h.count(`SELECT count(*) FROM environment WHERE timeline = 2 AND NOT paused AND adopted_by LIKE '%op%' AND former_epoch <> 0`); n != 1 {
		t.Error("the new timeline and its adoption are not written")
	}
	h.start(operated(t)).isReady() // a start finds nothing wrong
}
