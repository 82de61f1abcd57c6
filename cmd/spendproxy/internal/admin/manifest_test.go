package admin_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

type registered struct {
	Received  int `json:"received"`
	New       int `json:"new"`
	Changed   int `json:"changed"`
	Unchanged int `json:"unchanged"`
	Withdrawn int `json:"withdrawn"`
	Count     int `json:"refused_count"`
	Refused   []struct {
		Line     int    `json:"line"`
		Customer string `json:"customer_id"`
		Period   string `json:"billing_period"`
		Code     string `json:"code"`
		Message  string `json:"message"`
	} `json:"refused"`
	Expected []struct {
		Currency string `json:"currency"`
		Bills    int64  `json:"bills"`
		Minor    int64  `json:"amount_minor"`
		Cap      int64  `json:"cap_minor"`
	} `json:"expected"`
}

// run issues the key of a run as the service, and returns the path of its
// manifest.
func (i *instance) run() (k key, manifest string) {
	i.t.Helper()
	var v issued
	i.want(http.StatusCreated, &v, serviceToken, http.MethodPost, "/admin/v1/vault-keys", aRun)
	return v.VaultKey, "/admin/v1/vault-keys/" + v.VaultKey.ID + "/manifest"
}

func (i *instance) put(path, body string) (v registered) {
	i.t.Helper()
	a := i.send(serviceToken, http.MethodPut, path, body, "Content-Type", "application/x-ndjson")
	if a.status != http.StatusOK {
		i.t.Fatalf("the manifest got %d %s", a.status, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		i.t.Fatal(err)
	}
	return v
}

func bill(n int, more string) string {
	return fmt.Sprintf(`{"customer_id":"cust_%d","billing_period":"2026-12","amount_minor":1000,"currency":"usd"%s}`+"\n", n, more)
}

// A manifest is taken as a stream, and the cap follows it; again, it changes
// nothing; what is wrong is refused by its line and spoils no other.
func TestManifest(t *testing.T) {
	t.Parallel()
	i := start(t)
	k, path := i.run()
	var body strings.Builder
	for n := range 3000 {
		body.WriteString(bill(n, ""))
	}
	first := i.put(path, body.String())
	if first.Received != 3000 || first.New != 3000 || first.Count != 0 || len(first.Expected) != 1 || first.Expected[0].Bills != 3000 || first.Expected[0].Minor != 3_000_000 || first.Expected[0].Cap != 3_300_000 {
		t.Errorf("the first: %+v", first)
	}
	if again := i.put(path, strings.TrimSpace(body.String())); again.Unchanged != 3000 || again.New+again.Changed+again.Count != 0 || again.Expected[0].Cap != 3_300_000 {
		t.Errorf("again: %+v", again)
	}
	mixed := i.put(path, "\n"+
		bill(0, `,"fixed":true`)+ // line 2
		`{"customer_id":"cust_1"}`+"\n"+ // 3
		"not JSON\n"+ // 4
		bill(1, `,"colour":"red"`)+ // 5
		"\r\n"+ // 6
		bill(2, "")+ // 7
		strings.Repeat(" ", 100<<10)+bill(3, "")+ // 8
		strings.Replace(bill(0, ""), "1000", "2000", 1)+ // 9: fixed by line 2, or repeated
		strings.Replace(bill(5, ""), "1000", "1", 1)+ // 10
		strings.Replace(bill(6, ""), "usd", "USD", 1)+ // 11
		strings.Replace(bill(7, ""), "2026-12", "2026-13", 1)+ // 12
		strings.Replace(bill(8, ""), "cust_8", "cust:8", 1)+ // 13
		bill(9, `,"stripe_customer_id":"acct_1"`)+ // 14
		bill(10, `,"stripe_customer_id":"cus_10"`)+ // 15
		bill(11, `,"withdrawn":true`)+ // 16
		bill(12, `,"withdrawn":1`)+ // 17
		bill(13, `,"amount_minor":1000`)+ // 18
		bill(3000, "")) // 19
	lines := map[int]string{}
	for _, r := range mixed.Refused {
		lines[r.Line] += r.Code + ": " + r.Message
	}
	for line, want := range map[int]string{3: "required", 4: "JSON object", 5: "colour", 8: "line_too_long", 9: "entry_", 10: "minimum", 11: "lower case", 12: "billing_period", 13: "customer_id", 14: "cus_", 17: "true or false", 18: "more than once"} {
		if !strings.Contains(lines[line], want) {
			t.Errorf("line %d is refused by %q, want %q", line, lines[line], want)
		}
		delete(lines, line)
	}
	if len(lines) != 0 || mixed.Count != 12 || mixed.Received != 17 || mixed.Withdrawn != 1 || mixed.New != 1 {
		t.Errorf("others are refused: %v; %+v", lines, mixed)
	}
	if e := mixed.Expected[0]; e.Bills != 3000 || e.Minor != 3_000_000 { // one withdrawn, one new
		t.Errorf("expected: %+v", e)
	}
	var shown key
	i.want(200, &shown, serviceToken, "GET", strings.TrimSuffix(path, "/manifest"), "")
	if len(shown.Caps) != 1 || shown.Caps[0].Cap != 3_300_000 || shown.Caps[0].ByOperator || shown.ID != k.ID {
		t.Errorf("the key: %+v", shown)
	}
	if empty := i.put(path, "\n"); empty.Received != 0 {
		t.Errorf("an empty manifest: %+v", empty)
	}
}

// Refusals are counted in full and shown by the hundred, by line.
func TestManyRefusals(t *testing.T) {
	t.Parallel()
	i := start(t)
	_, path := i.run()
	got := i.put(path, strings.Repeat("x\n", 150)+strings.Repeat(bill(1, ""), 3)+strings.Repeat("\n", 20)+"x")
	if got.Count < 151 || len(got.Refused) != 100 || got.Refused[0].Line != 1 || got.Refused[99].Line != 100 || got.New != 1 {
		t.Errorf("%d refused, %d shown: %+v", got.Count, len(got.Refused), got)
	}
}

// A key without a manifest takes none; a body that is not lines of JSON is not
// looked at.
func TestManifestIsRefused(t *testing.T) {
	t.Parallel()
	i := start(t)
	_, path := i.run()
	agent := "/admin/v1/vault-keys/" + i.issue(anAgent).VaultKey.ID + "/manifest"
	for _, test := range []struct {
		path, contentType string
		status            int
	}{
		{agent, "application/x-ndjson", 409}, {"/admin/v1/vault-keys/nobody/manifest", "application/x-ndjson", 404}, {path, "application/json", 415}, {path, "text/plain", 415}, {path + "?x=1", "application/x-ndjson", 400},
	} {
		if a := i.send(adminToken, "PUT", test.path, bill(1, ""), "Content-Type", test.contentType); a.status != test.status {
			t.Errorf("%s of %s: got %d %s", test.contentType, test.path, a.status, a.body)
		}
	}
}

// A manifest that breaks off leaves nothing: half of one would cap the run too
// low.
func TestManifestBreaksOff(t *testing.T) {
	t.Parallel()
	i := start(t)
	k, path := i.run()
	c, err := net.Dial("tcp", strings.TrimPrefix(i.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "PUT %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/x-ndjson\r\nContent-Length: 100000\r\n\r\n%s", path, adminToken, bill(1, "")+bill(2, ""))
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "body_broken") {
		t.Errorf("got %d %s", res.StatusCode, text)
	}
	var shown key
	i.want(200, &shown, adminToken, "GET", "/admin/v1/vault-keys/"+k.ID, "")
	if len(shown.Caps) != 0 {
		t.Errorf("half a manifest was taken: %+v", shown.Caps)
	}
}
