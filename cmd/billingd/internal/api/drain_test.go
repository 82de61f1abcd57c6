package api

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestDrain(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.register("alice")
	waited := make(chan answer, 1)
	go func() {
		waited <- i.do(i.request(http.MethodPost, "/v1/commands/charge-billing?wait=1m", chargeBody("alice", "2026-11", 5000)))
	}()
	eventually(t, "the charge is recorded", func() bool { return i.events() == 2 })
	begun := time.Now()
	i.stop()
	a := <-waited
	if r := a.receipt(t); a.status != http.StatusAccepted || r.Bill == nil || time.Since(begun) > 4*time.Second {
		t.Errorf("after %s the wait got %d %s", time.Since(begun), a.status, a.body)
	}
	if _, err := client.Do(i.request(http.MethodGet, "/healthz", "")); err == nil {
		t.Error("it still listens")
	}
}

func TestDrainingRefusesWork(t *testing.T) {
	t.Parallel()
	i := start(t)
	hold := make(chan struct{})
	entered := make(chan struct{})
	i.handle(public("slow", http.MethodGet, "/slow", tagService, ""), func(w http.ResponseWriter, _ *http.Request) error {
		close(entered)
		<-hold
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
	// Two requests on one connection: the second comes while the service stops.
	c := i.raw(t)
	fmt.Fprint(c, "GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/customers HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		i.stop()
	}()
	eventually(t, "it drains", i.isDraining)
	close(hold)
	<-stopped
	if a := (&instance{Server: i.Server, t: t}).serve("/v1/customers"); a.problem(t).Code != "shutting_down" || a.header.Get("Connection") != "close" || a.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if a := (&instance{Server: i.Server, t: t}).serve("/healthz"); a.status != 200 {
		t.Errorf("/healthz got %d", a.status)
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a port file")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Listen("127.0.0.1:0", file)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	written, err := os.ReadFile(file)
	if err != nil || string(written) != l.Addr().String()+"\n" {
		t.Errorf("the port file holds %q (%v), want %s", written, err, l.Addr())
	}
	other := filepath.Join(t.TempDir(), "other")
	if _, err := Listen(l.Addr().String(), other); err == nil {
		t.Error("a taken port was taken again")
	}
	if _, err := os.Stat(other); err == nil {
		t.Error("there is a port file for an address that nobody listens on")
	}
	if _, err := Listen("127.0.0.1:0", filepath.Join(t.TempDir(), "missing", "file")); err == nil {
		t.Error("a port file that cannot be written was passed over")
	}
}
