package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/billonce/billonce/commands"
)

// said is what a command printed, and how it ended.
type said struct {
	code     int
	out, err string
}

// billingctl runs a command line.
func billingctl(t *testing.T, in string, args ...string) said {
	t.Helper()
	var out, errs bytes.Buffer
	code := Run(t.Context(), args, Streams{In: strings.NewReader(in), Out: &out, Err: &errs}, nil)
	return said{code, out.String(), errs.String()}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}} {
		got := billingctl(t, "", args...)
		if got.code != exitOK || got.err != "" {
			t.Errorf("%q: %+v", args, got)
		}
		for _, want := range []string{"demo", "dispatch", "replay", "vault-keys", "Exit status: 0 it worked; 1 it failed"} {
			if !strings.Contains(got.out, want) {
				t.Errorf("%q is not in the help", want)
			}
		}
	}
	if got := billingctl(t, "", "demo", "--help"); !strings.Contains(got.out, "demo: customers=1000 charged=1000 twice=0 missing=0") {
		t.Errorf("the demo's help is\n%s", got.out)
	}
}

// Mistakes end with 2, and nothing is done.
func TestUsage(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("BILLINGCTL_TOKEN", "")
	os.Unsetenv("BILLINGCTL_TOKEN") // put back by Setenv's clean-up
	for _, test := range []struct {
		line string
		want string
	}{
		{"fly", "unexpected argument fly"},
		{"-o xml runs show 2026-12", "must be one of"},
		{"runs show", "expected \"<period>\""},
		{"--url localhost:8080 runs show 2026-12", "--url: the address of billingd must be a URL"},
		{"migrate", "DATABASE_URL is needed"},
		{"replay bills", "DATABASE_URL is needed"},
		{"replay everything", "projection must be one of [customers bills charges refunds runs revenue]"},
		{"processors pause billing", "missing flags: --reason"},
		{"dead-letters skip bills cust_1 here --reason x", "position"},
		{"events tail --last 5000", "--last must be 0 to 200"},
		{"import /nowhere.ndjson", "no such file"},
		{"demo --customers 0", "--customers must be 1 to 100000"},
		{"demo --rate-only --keep", "--rate-only keeps nothing"},
		{"demo --latency 1h", "--latency must be"},
		{"dispatch", "which command?"},
		{"dispatch charge", `there is no command "charge"`},
		{"dispatch start-attempt", "start-attempt is sent by the service itself"},
		{"dispatch charge-billing --colour red", "unknown flag --colour"},
		{"dispatch charge-billing --amount-minor five", "--amount-minor"},
		{"dispatch charge-billing --customer-id a --json -", "as flags or by --json, not both"},
		{"dispatch charge-billing --json /nowhere.json", "no such file"},
		{"dispatch register-customer --wait 5s", "--wait is for commands that charge"},
		{"saga plan", "expected \"<processor>\""},
		{"saga plan billing", "DATABASE_URL is needed"},
		{"saga plan billing --from here", "--from must be"},
		{"saga plan billing --to here", "--to must be"},
		{"saga plan billing --apply --reason x", "--apply needs --digest"},
		{"saga plan billing --apply --digest x", "--apply needs --digest"},
		{"saga plan billing --digest x", "--digest goes with --apply"},
		{"reconcile --period 2026-12 --since 2026-12-01", "can't be used together"},
		{"verify", "DATABASE_URL is needed"},
		{"verify --export /nowhere.ndjson", "no such file"},
		{"verify --show=-1", "--show must be 0 or more"},
		{"adopt", "missing flags: --reason=TEXT"},
		{"events export", "DATABASE_URL is needed"},
		{"events export --from here", "--from must be"},
		{"events import /nowhere.ndjson", "no such file"},
		{"events show cust_1 --at yesterday", "--at must be"},
		{"events show cust_1 --at 0", "--at must be"},
		{"runs close", "expected \"<period>\""},
	} {
		got := billingctl(t, "", strings.Fields(test.line)...)
		if got.code != exitUsage || got.out != "" || !strings.HasPrefix(got.err, "billingctl: ") || !strings.Contains(got.err, test.want) {
			t.Errorf("billingctl %s: %+v, want %q", test.line, got, test.want)
		}
	}
	t.Setenv("BILLINGCTL_TOKEN", " ")
	if got := billingctl(t, "", "runs", "show", "2026-12"); got.code != exitUsage || !strings.Contains(got.err, "BILLINGCTL_TOKEN is set but blank") {
		t.Errorf("a blank token: %+v", got)
	}
	t.Setenv("DATABASE_URL", "postgres://user:secret@host:port/x")
	if got := billingctl(t, "", "replay", "bills"); got.code != exitUsage || strings.Contains(got.err, "secret") {
		t.Errorf("a malformed database URL: %+v", got)
	}
}

// request is what a service was sent.
type request struct{ path, key, auth, body string }

// serve is a service that answers everything by one document, and says what it
// was sent.
func serve(t *testing.T, status int, document string) *request {
	t.Helper()
	var got request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = request{r.URL.String(), r.Header.Get("Idempotency-Key"), r.Header.Get("Authorization"), string(body)}
		w.WriteHeader(status)
		fmt.Fprint(w, document)
	}))
	t.Cleanup(s.Close)
	t.Setenv("BILLINGCTL_URL", s.URL)
	t.Setenv("BILLINGCTL_TOKEN", "secret")
	return &got
}

const aReceipt = `{"key":"78ad","command":"charge-billing","stream":"customer/cust_1","version":3,"position":"17-40","replayed":false,
	"events":[{"type":"charge.requested.v1","version":3,"position":"17-40"}],"bill":{"status":"requested","attempt":1,"intent_id":"","charge_id":""}}`

// Every command of the registry can be dispatched with a flag for each field.
func TestDispatch(t *testing.T) {
	got := serve(t, http.StatusAccepted, aReceipt)
	ran := billingctl(t, "", "dispatch", "charge-billing", "--customer-id", "cust_1", "--billing-period=2026-12", "--amount-minor", "4900", "--currency", "usd",
		"--idempotency-key", "k1", "--wait", "5s")
	if want := (request{"/v1/commands/charge-billing?wait=5s", "k1", "Bearer secret",
		`{"amount_minor":4900,"billing_period":"2026-12","currency":"usd","customer_id":"cust_1"}`}); *got != want || ran.code != exitOK {
		t.Errorf("sent %+v, want %+v; %+v", *got, want, ran)
	}
	if want := `outcome   recorded
key       78ad
stream    customer/cust_1, version 3
position  17-40
fact      charge.requested.v1 at 17-40
bill      requested, attempt 1; not decided yet
`; ran.out != want {
		t.Errorf("printed\n%swant\n%s", ran.out, want)
	}
	if ran := billingctl(t, "", "-o", "json", "dispatch", "charge-billing", "--customer-id", "cust_1"); !strings.HasPrefix(ran.out, "{\n  \"key\": \"78ad\",") || got.body != `{"customer_id":"cust_1"}` {
		t.Errorf("sent %s, printed %s", got.body, ran.out)
	}
	for spec := range commands.All() {
		var args []string
		for _, field := range jsonFields(spec) {
			args = append(args, "--"+flagOf(field)+"=7")
		}
		ran := billingctl(t, "", append([]string{"dispatch", spec.Name}, args...)...)
		if ran.code != exitOK || got.path != "/v1/commands/"+spec.Name {
			t.Errorf("%s: %+v, sent to %s", spec.Name, ran, got.path)
		}
		for _, field := range jsonFields(spec) {
			if !strings.Contains(got.body, fmt.Sprintf(`"%s":7`, field)) && !strings.Contains(got.body, fmt.Sprintf(`"%s":"7"`, field)) {
				t.Errorf("%s: %s is not in %s", spec.Name, field, got.body)
			}
		}
		subject := "--customer-id"
		if strings.HasSuffix(spec.Name, "-run") {
			subject = "--billing-period"
		}
		if help := billingctl(t, "", "dispatch", spec.Name, "--help"); help.code != exitOK || !strings.Contains(help.out, subject) {
			t.Errorf("the help of %s is %+v", spec.Name, help)
		}
	}
}

func jsonFields(spec commands.Spec) (names []string) {
	flags, err := fieldFlags(spec)
	if err != nil {
		panic(err)
	}
	for _, f := range flags {
		names = append(names, fieldOf(f.Tag.Get("name")))
	}
	return names
}

// The fields may come as JSON, from a file or a pipe, and go on as they are.
func TestDispatchJSON(t *testing.T) {
	got := serve(t, http.StatusOK, aReceipt)
	body := "{\"customer_id\": \"cust_1\",\n \"surprise\": [1]}"
	file := filepath.Join(t.TempDir(), "a body.json")
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{file, "-"} {
		got.body = ""
		if ran := billingctl(t, body, "dispatch", "charge-billing", "--json", from); ran.code != exitOK || got.body != body {
			t.Errorf("%s: %+v, sent %q", from, ran, got.body)
		}
	}
	if ran := billingctl(t, "{", "dispatch", "charge-billing", "--json=-"); ran.code != exitUsage {
		t.Errorf("half a document: %+v", ran)
	}
}

// What the service refuses is said in its words, with 1.
func TestRefusals(t *testing.T) {
	serve(t, http.StatusConflict, `{"status":409,"code":"amount_conflict","detail":"the bill is frozen at another amount"}`)
	ran := billingctl(t, "", "dispatch", "charge-billing", "--customer-id", "cust_1")
	if ran.code != exitFailed || ran.err != "billingctl: dispatch charge-billing: amount_conflict: the bill is frozen at another amount\n" || ran.out != "" {
		t.Errorf("got %+v", ran)
	}
	t.Setenv("BILLINGCTL_URL", "http://127.0.0.1:1")
	if ran := billingctl(t, "", "runs", "show", "2026-12"); ran.code != exitFailed || !strings.Contains(ran.err, "reach billingd: ") || strings.Contains(ran.err, "secret") {
		t.Errorf("got %+v", ran)
	}
}

func TestCountRows(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]int{"": 0, "\n \n": 0, "a": 1, "a\n": 1, "a\n\nb": 2, strings.Repeat("x", 300<<10) + "\nb\n" + strings.Repeat(" ", 300<<10): 2} {
		if got, err := countRows(strings.NewReader(file)); err != nil || got != want {
			t.Errorf("%.10q… has %d rows, want %d, %v", file, got, want, err)
		}
	}
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"bin/billingctl": "bin/billingctl", "/a b/c": "'/a b/c'", "it's $HOME": `'it'\''s $HOME'`} {
		if got := quoted(word); got != want {
			t.Errorf("%s is quoted as %s, want %s", word, got, want)
		}
	}
}
