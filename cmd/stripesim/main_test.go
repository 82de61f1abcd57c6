package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// TestMain lets the test binary be the program: a child with this variable set
// runs main.
func TestMain(m *testing.M) {
	if os.Getenv("STRIPESIM_TEST_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// child is a stripesim process.
type child struct {
	cmd      *exec.Cmd
	api      string
	control  string
	portFile string
	stdout   *bytes.Buffer
	done     chan error
}

// launch starts a stripesim process on free ports and waits for its port file.
func launch(t *testing.T, args ...string) *child {
	t.Helper()
	c := &child{portFile: filepath.Join(t.TempDir(), "ports.json"), stdout: new(bytes.Buffer), done: make(chan error, 1)}
	c.cmd = exec.Command(os.Args[0], append([]string{"--listen=127.0.0.1:0", "--control-listen=127.0.0.1:0", "--port-file=" + c.portFile}, args...)...)
	c.cmd.Env = append(os.Environ(), "STRIPESIM_TEST_MAIN=1")
	c.cmd.Stdout, c.cmd.Stderr = c.stdout, os.Stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.done <- c.cmd.Wait() }()
	t.Cleanup(func() { c.cmd.Process.Kill() }) //nolint:errcheck // usually gone already
	deadline := time.Now().Add(20 * time.Second)
	for {
		var ports struct {
			API, Control string
			PID          int
		}
		content, err := os.ReadFile(c.portFile)
		if err == nil {
			if err := json.Unmarshal(content, &ports); err != nil {
				t.Fatalf("half a port file: %v in %q", err, content)
			}
			if ports.PID != c.cmd.Process.Pid {
				t.Fatalf("port file of process %d, started %d", ports.PID, c.cmd.Process.Pid)
			}
			c.api, c.control = ports.API, ports.Control
			return c
		}
		select {
		case err := <-c.done:
			t.Fatalf("ended before it listened: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("no port file")
		}
	}
}

func (c *child) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-c.done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("does not end")
		return nil
	}
}

var client = &http.Client{Timeout: 10 * time.Second}

// charge makes a legacy charge and returns its id and whether it was replayed.
func (c *child) charge(key string) (id string, replayed bool, err error) {
	r, err := http.NewRequest("POST", c.api+"/v1/charges", strings.NewReader("amount=5000&currency=usd&customer=cus_A"))
	if err != nil {
		return "", false, err
	}
	r.Header.Set("Authorization", "Bearer sk_test_1")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Idempotency-Key", key)
	resp, err := client.Do(r)
	if err != nil {
		return "", false, err
	}
	defer resp.Body.Close()
	var ch struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&ch); err != nil {
		return "", false, err
	}
	if resp.StatusCode != 200 {
		return "", false, fmt.Errorf("status %d", resp.StatusCode)
	}
	return ch.ID, resp.Header.Get("Idempotent-Replayed") == "true", nil
}

func (c *child) ledger(t *testing.T) []sim.Movement {
	t.Helper()
	resp, err := client.Get(c.control + "/control/ledger")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var ledger struct{ Movements []sim.Movement }
	if err := json.NewDecoder(resp.Body).Decode(&ledger); err != nil {
		t.Fatal(err)
	}
	return ledger.Movements
}

// Killed in the middle of its work, three times, it comes back with every charge
// that it had answered, and with one for each key.
func TestKill9LosesNoAnsweredMoney(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "journal")
	answered := make(map[string]string) // key → charge
	for round := range 3 {
		c := launch(t, "--data="+data)
		var mu sync.Mutex
		var wg sync.WaitGroup
		enough := make(chan struct{})
		for w := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					key := fmt.Sprintf("%d-%d-%d", round, w, i)
					id, _, err := c.charge(key)
					if err != nil {
						return // it has been killed
					}
					mu.Lock()
					answered[key] = id
					if len(answered) == 150*(round+1) {
						close(enough)
					}
					mu.Unlock()
				}
			})
		}
		select {
		case <-enough:
		case <-time.After(20 * time.Second):
			t.Fatal("150 charges take too long")
		}
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		c.wait(t) //nolint:errcheck // killed
	}

	c := launch(t, "--data="+data)
	kept := make(map[string]string)
	perKey := make(map[string]int)
	for _, m := range c.ledger(t) {
		kept[m.Key] = m.Charge
		perKey[m.Key]++
	}
	for key, id := range answered {
		if kept[key] != id {
			t.Errorf("key %s was answered with charge %s; the ledger has %q", key, id, kept[key])
		}
	}
	for key, n := range perKey {
		if n != 1 {
			t.Errorf("%d charges under key %s", n, key)
		}
	}
	for key, id := range answered {
		again, replayed, err := c.charge(key)
		if err != nil || again != id || !replayed {
			t.Errorf("key %s after the restart: charge %s, replayed %v, %v; want %s replayed", key, again, replayed, err, id)
		}
		break
	}
}

// A killed process owes the webhooks of what it has answered: the next one
// delivers them all, signed.
func TestKill9LosesNoWebhook(t *testing.T) {
	t.Setenv("STRIPESIM_WEBHOOK_SECRET", "whsec_old,whsec_new")
	var mu sync.Mutex
	told := make(map[string]bool) // charge → delivered and accepted
	refuse := true
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event struct {
			Data struct{ Object struct{ ID string } }
		}
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			return // its sender was killed
		}
		mu.Lock()
		defer mu.Unlock()
		if refuse {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if strings.Count(r.Header.Get("Stripe-Signature"), ",v1=") != 2 {
			t.Errorf("signed %s", r.Header.Get("Stripe-Signature"))
		}
		told[event.Data.Object.ID] = true
	}))
	defer endpoint.Close()
	args := []string{"--data=" + filepath.Join(t.TempDir(), "journal"), "--webhook-url=" + endpoint.URL}
	c := launch(t, args...)
	answered := make(map[string]bool)
	for n := range 40 {
		id, _, err := c.charge(fmt.Sprintf("k-%d", n))
		if err != nil {
			t.Fatal(err)
		}
		answered[id] = true
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.wait(t) //nolint:errcheck // killed
	mu.Lock()
	refuse = false
	mu.Unlock()
	launch(t, args...)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		mu.Lock()
		n := len(told)
		mu.Unlock()
		if n == len(answered) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d charges were told", n, len(answered))
		}
	}
	for id := range answered {
		if !told[id] {
			t.Errorf("nobody told of %s", id)
		}
	}
}

// On SIGTERM what is under way is answered, the port file goes, the status is 0.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	c := launch(t)
	resp, err := client.Post(c.control+"/control/faults", "application/json", strings.NewReader(`{"fault":"delay_after_commit","delay":"1h"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	slow := make(chan error, 1)
	go func() {
		_, _, err := c.charge("slow")
		slow <- err
	}()
	for len(c.ledger(t)) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-slow; err != nil {
		t.Errorf("the request under way: %v", err)
	}
	if err := c.wait(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(c.portFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the port file is still there: %v", err)
	}
	line, err := bufio.NewReader(c.stdout).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var started struct{ Msg, API, Control string }
	if err := json.Unmarshal(line, &started); err != nil || started.API != c.api || started.Control != c.control {
		t.Errorf("first line %s (%v), want one with the addresses %s and %s", line, err, c.api, c.control)
	}
}

// Every fault in the settings is named at once, and the status is 2.
func TestBadSettings(t *testing.T) {
	for name, value := range map[string]string{
		"STRIPESIM_LISTEN": "nowhere", "STRIPESIM_CONTROL_LISTEN": "0.0.0.0:0", "STRIPESIM_CONTROL_TOKEN": " ",
		"STRIPESIM_KEY_RETENTION": "a day", "STRIPESIM_PRUNE": "never", "STRIPESIM_SEARCH_LAG": "-1s",
		"STRIPESIM_RATE_LIMIT": "fast", "STRIPESIM_ACCOUNT": "mine", "STRIPESIM_API_KEYS": "sk_test_1,sk_live_secret",
		"STRIPESIM_CLOCK": "noon", "STRIPESIM_WEBHOOK_URL": "localhost:1", "STRIPESIM_WEBHOOK_SECRET": " ,",
	} {
		t.Setenv(name, value)
	}
	var stderr bytes.Buffer
	if status := run(t.Context(), nil, io.Discard, &stderr); status != 2 {
		t.Errorf("status %d, want 2", status)
	}
	for _, name := range []string{
		"STRIPESIM_LISTEN", "STRIPESIM_CONTROL_TOKEN", "STRIPESIM_KEY_RETENTION", "STRIPESIM_PRUNE", "STRIPESIM_SEARCH_LAG",
		"STRIPESIM_RATE_LIMIT", "STRIPESIM_ACCOUNT", "STRIPESIM_API_KEYS", "STRIPESIM_CLOCK", "STRIPESIM_WEBHOOK_URL",
		"STRIPESIM_WEBHOOK_SECRET",
	} {
		if !strings.Contains(stderr.String(), name+": ") {
			t.Errorf("%s is not named in:\n%s", name, stderr.String())
		}
	}
	if strings.Contains(stderr.String(), "secret") {
		t.Error("a key is printed")
	}
}

func TestControlNeedsATokenOffLoopback(t *testing.T) {
	var stderr bytes.Buffer
	status := run(t.Context(), []string{"--listen=127.0.0.1:0", "--control-listen=0.0.0.0:0"}, io.Discard, &stderr)
	if status != 2 || !strings.Contains(stderr.String(), "STRIPESIM_CONTROL_TOKEN") {
		t.Errorf("status %d, %s", status, stderr.String())
	}
	if status := run(t.Context(), []string{"--no-such-flag"}, io.Discard, &stderr); status != 2 {
		t.Errorf("unknown flag: status %d, want 2", status)
	}
	var stdout bytes.Buffer
	if status := run(t.Context(), []string{"--help"}, &stdout, io.Discard); status != 0 || !strings.Contains(stdout.String(), "STRIPESIM_DATA") {
		t.Errorf("help: status %d, %s", status, stdout.String())
	}
}

// An address in use is status 1, with the reason.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	server, err := sim.Start(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var stderr bytes.Buffer
	status := run(ctx, []string{"--listen=" + strings.TrimPrefix(server.APIURL, "http://"), "--control-listen=127.0.0.1:0"}, io.Discard, &stderr)
	if status != 1 || !strings.Contains(stderr.String(), "in use") {
		t.Errorf("status %d, %s", status, stderr.String())
	}
}
