package sim

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A journal that cannot be written takes the stand-in out of service: what it
// might forget it does not answer, and it says so.
func TestJournalThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	server, err := Start(Options{Data: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() //nolint:errcheck // its file is gone
	if err := server.journal.file.Close(); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := http.NewRequest("POST", server.APIURL+"/v1/charges", strings.NewReader("amount=5000&currency=usd&customer=cus_A"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer sk_test_1")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if resp, err := client.Do(r); err == nil {
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		t.Errorf("answered %d %s", resp.StatusCode, body)
	}
	select {
	case <-server.Failed():
	default:
		t.Error("not reported as failed")
	}
	if server.Err() == nil {
		t.Error("failed without a reason")
	}
	resp, err := client.Get(server.ControlURL + "/control/ledger")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusInternalServerError {
		t.Errorf("control answers %d, want 500", resp.StatusCode)
	}
}
