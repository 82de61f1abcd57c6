package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Case C131: ten thousand connections that say nothing, or half a request, cost
// little memory, and others are served meanwhile.
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
	limit := int64(256 << 20)
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
