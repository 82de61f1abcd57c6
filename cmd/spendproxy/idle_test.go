package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/config"
)

// Case C131: ten thousand connections that say nothing, or half a request, cost
// little memory, since few of them may wait at a time, and others are served
// meanwhile.
func TestC131_IdleConnections(t *testing.T) {
	const crowd = 10_000
	stripe := newUpstream(t, says(200, aCharge))
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(1_000_000)
	c := r.launch(stripe.URL)
	r.url = c.url
	r.charge(key, 1000).want(t, "before", 200, "")
	before := resident(t, c.cmd.Process.Pid)

	address := strings.TrimPrefix(c.url, "http://")
	line := "POST /v1/charges HTTP/1.1\r\nHost: x\r\n" + head(key)
	conns := make([]net.Conn, 0, crowd)
	t.Cleanup(func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	most := before
	for n := range crowd {
		conn, err := net.DialTimeout("tcp", address, 30*time.Second)
		if err != nil {
			t.Fatalf("connection %d: %v", n, err)
		}
		conns = append(conns, conn)
		switch n % 4 {
		case 0: // nothing at all
		case 1:
			_, err = fmt.Fprint(conn, line[:60]) // half a header
		case 2:
			_, err = fmt.Fprint(conn, line, "Content-Length: 60000\r\n\r\namount") // half a body
		case 3:
			_, err = fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") // a request, and then nothing
		}
		if err != nil {
			t.Fatalf("connection %d: %v", n, err)
		}
		if n%1000 == 999 {
			r.charge(key, 1000).want(t, "beside them", 200, "")
			most = max(most, resident(t, c.cmd.Process.Pid))
		}
	}
	t.Logf("%d connections cost %d MiB", crowd, (most-before)>>20)
	limit := int64(96 << 20)
	if slices.Contains(buildSettings(t), debug.BuildSetting{Key: "-race", Value: "true"}) {
		limit *= 5 // the race detector's own memory of it
	}
	if grown := most - before; grown > limit {
		t.Errorf("%d connections cost %d MiB", crowd, grown>>20)
	}
	eventually(t, "those that said nothing, or half, are let go", func() bool {
		_ = conns[0].SetReadDeadline(time.Now().Add(time.Second))
		_, err := conns[0].Read(make([]byte, 1))
		return err != nil && !os.IsTimeout(err)
	})
}

// Of the connections that wait, those that have waited longest are closed once
// there are too many. Whoever is being served is not among them, and who comes
// next is served.
func TestACrowdOfSilentConnections(t *testing.T) {
	t.Parallel()
	const most, silent = 16, 50
	arrived, release := make(chan struct{}), make(chan struct{})
	stripe := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/charges/ch_slow" {
			close(arrived)
			<-release
		}
		says(200, aCharge)(w, r)
	})
	r := newRigAt(t, stripe.URL, func(c *config.Config) { c.IdleConnections = most })
	key := r.free(1_000_000)
	slow := make(chan answer, 1)
	go func() { slow <- r.get(key, "/v1/charges/ch_slow") }()
	<-arrived
	conns := make([]net.Conn, silent)
	for n := range conns {
		conn, err := net.Dial("tcp", r.app.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if conns[n] = conn; n%2 == 1 {
			if _, err := io.WriteString(conn, "GET /v1/charges/ch_1 HTTP/1.1\r\nHo"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n, conn := range conns[:silent-most-1] { // the last one may wait yet to be accepted
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second)) // sooner than their header's time is up
		if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Errorf("connection %d is left: %v", n, err)
		}
	}
	r.charge(key, 1000).want(t, "beside them", 200, "")
	if _, err := fmt.Fprintf(conns[silent-1], "st: x\r\nAuthorization: Bearer %s\r\n\r\n", key); err != nil {
		t.Error(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conns[silent-1]), nil)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("one that goes on with its header: %v, %v", res, err)
	}
	res.Body.Close()
	close(release)
	a := <-slow
	a.want(t, "the slow one", 200, "")
	if text := r.get(key, "/metrics").body; !strings.Contains(text, "spendproxy_connections_closed_total") || strings.Contains(text, "spendproxy_connections_closed_total 0\n") {
		t.Error("what was closed is not counted")
	}
}

// buildSettings are those that this program was built with.
func buildSettings(t *testing.T) []debug.BuildSetting {
	t.Helper()
	info, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("this program does not know how it was built")
	}
	return info.Settings
}

// resident is a process's memory in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "rss=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	kib, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
