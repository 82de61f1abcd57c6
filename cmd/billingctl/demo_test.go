package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// These tests build the four programs and run demos as a user does. A demo of
// some dozen customers takes a few seconds; whatever takes minutes hangs.
const hangs = 3 * time.Minute

// programs builds billingd, billingctl, spendproxy and stripesim, once, into a folder with
// a space in its name.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "billonce demo test ")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", dir, "./cmd/billingd", "./cmd/billingctl", "./cmd/spendproxy", "./cmd/stripesim")
	build.Dir = filepath.Join("..", "..")
	if said, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build the programs: %w: %s", err, said)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := programs(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// running is a billingctl under way.
type running struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string // of standard output, as they come
	out   bytes.Buffer
	errs  bytes.Buffer
	begun time.Time
}

// start starts billingctl.
func start(t *testing.T, env []string, args ...string) *running {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	t.Cleanup(cancel)
	r := &running{t: t, cmd: exec.CommandContext(ctx, filepath.Join(dir, "billingctl"), args...), lines: make(chan string, 1000), begun: time.Now()}
	r.cmd.Env = append(os.Environ(), env...)
	r.cmd.Stderr = &r.errs
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(syscall.SIGTERM) }
	r.cmd.WaitDelay = 30 * time.Second
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.lines)
		scanner := bufio.NewScanner(stdout)
		for scanner.Scan() {
			r.lines <- scanner.Text()
		}
	}()
	return r
}

// line waits for a line that matches and returns its groups.
func (r *running) line(pattern string) []string {
	r.t.Helper()
	p := regexp.MustCompile(pattern)
	for line := range r.lines {
		r.out.WriteString(line + "\n")
		if groups := p.FindStringSubmatch(line); groups != nil {
			return groups
		}
	}
	_ = r.cmd.Wait() // it writes no more
	r.t.Fatalf("no line matches %s in\n%s%s", pattern, r.out.String(), r.errs.String())
	return nil
}

// end waits for the end and returns the exit status and the last line.
func (r *running) end() (code int, last string) {
	r.t.Helper()
	for line := range r.lines {
		r.out.WriteString(line + "\n")
	}
	err := r.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		r.t.Fatalf("%v\n%s%s", err, r.out.String(), exit)
	}
	lines := strings.Split(strings.TrimRight(r.out.String(), "\n"), "\n")
	return r.cmd.ProcessState.ExitCode(), lines[len(lines)-1]
}

// run runs billingctl to its end.
func run(t *testing.T, env []string, args ...string) (code int, out, errs string) {
	t.Helper()
	r := start(t, env, args...)
	code, _ = r.end()
	return code, r.out.String(), r.errs.String()
}

// empty fails if a demo has left anything in its folder.
func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "run-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// foreign are settings of somebody else's service, which demos must not see.
var foreign = []string{"DATABASE_URL=postgres://nobody@127.0.0.1:1/none", "BILLING_LISTEN=nonsense", "STRIPE_API_KEY=sk_live_x", "STRIPESIM_LISTEN=nonsense", "PGHOST=/nowhere"}

func TestDemo(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a folder")
	r := start(t, foreign, "demo", "--customers", "60", "--latency", "400ms", "--dir", dir) // so that the kill meets bills in flight
	killed := r.line(`kill -9 \d+: billingd is dead after (\d+) charges, with (\d+) bills? in flight`)
	r.line(`kill -9 \d+: spendproxy is dead after \d+ charges`)
	code, last := r.end()
	if code != 0 || last != "demo: customers=60 charged=60 twice=0 missing=0 books=equal" {
		t.Errorf("exit status %d, last line %q\n%s%s", code, last, r.out.String(), r.errs.String())
	}
	if killed[2] == "0" {
		t.Errorf("nothing was in flight at the kill")
	}
	for _, want := range []string{"all              60", "0 POSTs without a key, 0 with a key of other parameters", "equal the ledger, to the minor unit and 60 charges by id",
		"6 read models are rebuilt beside the live ones out of ", "; 0 rows differ", "0 calls to Stripe during replay", "\nverify: events=", " streams=64 differences=0\ndemo: ",
		"equal to the minor unit in all three books"} {
		if !strings.Contains(r.out.String(), want) {
			t.Errorf("%q is not in\n%s", want, r.out.String())
		}
	}
	empty(t, dir)
	t.Logf("took %s", time.Since(r.begun).Round(100*time.Millisecond))
}

// A second charge is found, whether somebody plants it or a stand-in that has
// lost its respect for keys makes it.
func TestDemoFindsSecondCharges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, nil, "demo", "--customers", "60", "--dir", dir)
	r.line(`falls due for everybody`)
	parts := reach(t, dir)
	post(t, parts.Control+"/control/charges", "application/json", "", "", `{"customer": "cus_demo000001", "amount": 91980, "currency": "kwd"}`)
	r.line(`kill -9`)
	again(t, parts)
	code, last := r.end()
	if code != 1 || last != "demo: customers=60 charged=60 twice=2 missing=0 books=different" {
		t.Errorf("exit status %d, last line %q\n%s%s", code, last, r.out.String(), r.errs.String())
	}
	for _, want := range []string{"WRONG: cust_000001 owes KWD 91.980 and was charged 2 times", " are owed and "} {
		if !strings.Contains(r.out.String(), want) {
			t.Errorf("%q is not in\n%s", want, r.out.String())
		}
	}
	logs, err := filepath.Glob(filepath.Join(dir, "run-*", "*"))
	if err != nil || len(logs) != 3 {
		t.Errorf("the logs alone should stay until the next demo: %v, %v", logs, err)
	}
}

// parts is how the parts of a demo are reached.
type parts struct {
	API       string
	Token     string
	Database  string
	Stripe    string
	StripeKey string `json:"stripe_key"`
	Control   string
}

func reach(t *testing.T, dir string) (p parts) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "run-*", "demo.json"))
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v", found, err)
	}
	content, err := os.ReadFile(found[0])
	if err == nil {
		err = json.Unmarshal(content, &p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// again charges a customer once more with the very requests that charged them,
// under the same keys, while the stand-in ignores keys.
func again(t *testing.T, p parts) {
	t.Helper()
	var ledger struct {
		Movements []struct {
			Customer, Currency, Key string
			Amount                  int64
			Metadata                map[string]string
		}
	}
	get(t, p.Control+"/control/ledger?status=succeeded", &ledger)
	charged := ledger.Movements[0]
	for _, m := range ledger.Movements {
		if m.Customer != "cus_demo000001" { // who is charged twice already
			charged = m
		}
	}
	create := url.Values{"amount": {fmt.Sprint(charged.Amount)}, "currency": {charged.Currency}, "customer": {charged.Customer}, "payment_method_types[0]": {"card"}}
	for name, value := range charged.Metadata {
		create.Set("metadata["+name+"]", value)
	}
	const form = "application/x-www-form-urlencoded"
	post(t, p.Control+"/control/settings", "application/json", "", "", `{"ignore_keys": true}`)
	var intent struct{ ID string }
	if err := json.Unmarshal(post(t, p.Stripe+"/v1/payment_intents", form, p.StripeKey, charged.Key+"-intent", create.Encode()), &intent); err != nil {
		t.Fatal(err)
	}
	post(t, p.Stripe+"/v1/payment_intents/"+intent.ID+"/confirm", form, p.StripeKey, charged.Key, "payment_method=pm_card_visa&off_session=true")
	post(t, p.Control+"/control/settings", "application/json", "", "", `{"ignore_keys": false}`)
}

func get(t *testing.T, address string, into any) {
	t.Helper()
	res, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", address, res.Status, err)
	}
}

func post(t *testing.T, address, contentType, bearer, key, body string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("POST %s: %s, %v: %s", address, res.Status, err, answer)
	}
	return answer
}

// Ctrl-C stops everything and leaves nothing, at whatever moment.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, nil, "demo", "--customers", "60", "--dir", dir)
	r.line(`falls due for everybody`)
	processes := pids(t, dir)
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	code, _ := r.end()
	if code != 1 || !strings.Contains(r.errs.String(), "billingctl: interrupted") || strings.Contains(r.out.String(), "demo: ") {
		t.Errorf("exit status %d\n%s%s", code, r.out.String(), r.errs.String())
	}
	empty(t, dir)
	dead(t, processes)
}

// What a killed demo leaves running can be stopped.
func TestDemoKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, nil, "demo", "--customers", "60", "--dir", dir)
	r.line(`falls due for everybody`)
	processes := pids(t, dir)
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.end()
	if code, out, errs := run(t, nil, "demo", "--stop", "--dir", dir); code != 0 || out != "stopped and removed: 1\n" {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
	empty(t, dir)
	dead(t, processes)
	if code, out, errs := run(t, nil, "demo", "--stop", "--dir", dir); code != 0 || out != "no demo was left running\n" {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
}

// pids are the processes of the one demo in a folder, PostgreSQL's among them.
func pids(t *testing.T, dir string) (all []int) {
	t.Helper()
	for _, pattern := range []string{"run-*/*.pid", "run-*/database/postgres/cluster/postmaster.pid"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			content, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var pid int
			if _, err := fmt.Sscan(string(content), &pid); err != nil {
				t.Fatal(err)
			}
			all = append(all, pid)
		}
	}
	if len(all) != 4 {
		t.Fatalf("%d processes, not billingd, spendproxy, stripesim and PostgreSQL", len(all))
	}
	return all
}

// dead fails if one of the processes exists. Orphans are reaped by whoever
// adopts them, which may take a moment.
func dead(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		for end := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil && !zombie(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("process %d lives", pid)
				break
			}
		}
	}
}

// zombie reports whether a process is dead and not reaped, where that can be
// seen.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, found := bytes.Cut(stat, []byte(") "))
	return err == nil && found && bytes.HasPrefix(state, []byte("Z"))
}

// A demo that is kept can be worked with by every command, until it is stopped.
func TestDemoKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, nil, "demo", "--customers", "30", "--keep", "--dir", dir)
	r.line(`To stop it and remove everything: '.+ demo test .+/billingctl' demo --stop --dir `)
	code, last := r.end()
	if code != 0 || last != "demo: customers=30 charged=30 twice=0 missing=0 books=equal" {
		t.Fatalf("exit status %d, last line %q\n%s%s", code, last, r.out.String(), r.errs.String())
	}
	processes, p := pids(t, dir), reach(t, dir)
	env := []string{"BILLINGCTL_URL=" + p.API, "BILLINGCTL_TOKEN=" + p.Token, "DATABASE_URL=" + p.Database}
	all, err := os.ReadFile(filepath.Join("testdata", "customers.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "some.ndjson")
	some := bytes.Join(bytes.SplitAfterN(all, []byte("\n"), 101)[:100], nil)
	if err := os.WriteFile(file, some, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ line, want string }{
		{"import " + file, "import: rows=100 imported=70 replayed=30 failed=0"},
		{"import " + file, "import: rows=100 imported=0 replayed=100 failed=0"},
		{"runs show 2026-12", "2026-12: "},
		{"bill cust_000001 2026-12", "cust_000001 2026-12: KWD 91.980, paid, Stripe took KWD 91.980"},
		{"bill cust_000001 2026-12", "\nat Stripe\n  object"},
		{"-o json bill cust_000001 2026-12", `"billing_record": {`},
		{"events show cust_000001", "customer.billed.v1"},
		{"events tail --once -n 3", "customer/cust_"},
		{"-o json events tail --once --type customer.billed.v1 -n 1", `"type":"customer.billed.v1"`},
		{"processors list", "preflight"},
		{"processors show billing", "partition"},
		{"-o json processors show billing", `"processor": "billing"`},
		{"dead-letters list", "no dead letters"},
		{"dispatch charge-billing --customer-id cust_000001 --billing-period 2027-06 --amount-minor 91980 --currency kwd --wait 20s", "bill      paid, attempt 1"},
		{"dispatch charge-billing --customer-id cust_000001 --billing-period 2027-06 --amount-minor 91980 --currency kwd", "replayed: it had been recorded before"},
		{"replay bills", "replay: projection=bills events="},
		{"migrate", "the database has the schema of this version"},
	} {
		if code, out, errs := run(t, env, strings.Fields(test.line)...); code != 0 || !strings.Contains(out, test.want) {
			t.Errorf("billingctl %s: exit status %d, want %q in\n%s%s", test.line, code, test.want, out, errs)
		}
	}
	if code, out, errs := run(t, nil, "demo", "--stop", "--dir", dir); code != 0 || out != "stopped and removed: 1\n" {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
	empty(t, dir)
	dead(t, processes)
}
