package admin_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/admin"
)

// begin opens a connection and sends the beginning of a request with a body of
// so many bytes, of which only some come.
func (i *instance) begin(method, path, contentType string, length int, body string) net.Conn {
	i.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(i.url, "http://"))
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		i.t.Fatal(err)
	}
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", method, path, adminToken, contentType, length, body)
	return c
}

// answered reads the answer that ends a connection.
func (i *instance) answered(c net.Conn) answer {
	i.t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		i.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		i.t.Fatal(err)
	}
	if !res.Close {
		i.t.Errorf("after %d the connection is kept", res.StatusCode)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// Who sends byte by byte is let go, and harms nobody else.
func TestC131_SlowBodies(t *testing.T) {
	t.Parallel()
	house := start(t)
	k, manifest := house.run()
	i := house.at(t, admin.NewImpatient(house.ledger, admin.Tokens{Admin: adminToken}, house.logger(), 500*time.Millisecond))
	slow := i.begin("POST", "/admin/v1/vault-keys", "application/json", 500, "{")
	stalled := i.begin("PUT", manifest, "application/x-ndjson", 100_000, bill(1, "")+bill(2, ""))
	house.issue(anAgent)
	for what, c := range map[string]net.Conn{"a slow body": slow, "a manifest that stalls": stalled} {
		if a := i.answered(c); a.status != http.StatusRequestTimeout || a.code() != "body_timeout" {
			t.Errorf("%s got %d %s", what, a.status, a.body)
		}
	}
	var shown key
	house.want(200, &shown, adminToken, "GET", "/admin/v1/vault-keys/"+k.ID, "")
	if len(shown.Caps) != 0 {
		t.Errorf("of a manifest that stalled something was taken: %+v", shown.Caps)
	}
}
