package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// service answers every request by one handler.
func service(t *testing.T, token string, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := New(s.URL+"/", token)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNewRefusesAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "localhost:8080", "ftp://host", "http://", "http://user:secret@host", "http://host?x=1"} {
		if _, err := New(address, ""); err == nil {
			t.Errorf("%q is accepted", address)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q is quoted with its password", address)
		}
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status  int
		body    string
		want    string
		passing bool
	}{
		{400, `{"code":"invalid_input","detail":"bad","errors":[{"field":"currency","message":"must be lower case"},{"field":"at","message":"is required"}]}`,
			"invalid_input: currency must be lower case; at is required", false},
		{409, `{"code":"amount_conflict","detail":"the bill is frozen"}`, "amount_conflict: the bill is frozen", false},
		{503, `{"code":"try_again","detail":"later","request_id":"req_1"}`, "try_again: later (request req_1)", true},
		{502, `<html>`, "the answer has status 502 and no reason", true},
	} {
		c := service(t, "", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(test.status)
			fmt.Fprint(w, test.body)
		})
		_, err := c.Get(t.Context(), "/v1/runs", nil)
		p, ok := errors.AsType[*Problem](err)
		if !ok || p.Error() != test.want || p.Status != test.status || p.Passes() != test.passing {
			t.Errorf("%d %s: got %v, want %s", test.status, test.body, err, test.want)
		}
	}
}

// A redirect is not followed: a command must not be sent elsewhere.
func TestNoRedirects(t *testing.T) {
	t.Parallel()
	calls := 0
	c := service(t, "", func(w http.ResponseWriter, r *http.Request) {
		calls++
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	if _, _, err := c.Command(t.Context(), "charge-billing", "", "", []byte(`{}`)); err == nil || calls != 1 {
		t.Errorf("%d calls, error %v", calls, err)
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	c := service(t, "secret", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.String() != "/v1/commands/charge-billing?wait=5s" || r.Header.Get("Authorization") != "Bearer secret" ||
			r.Header.Get("Idempotency-Key") != "k1" || r.Header.Get("Content-Type") != "application/json" || string(body) != `{"a":1}` {
			t.Errorf("%s %v %s", r.URL, r.Header, body)
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, `{"key":"x"}`)
	})
	receipt, final, err := c.Command(t.Context(), "charge-billing", "k1", "5s", []byte(`{"a":1}`))
	if err != nil || final || string(receipt) != `{"key":"x"}` {
		t.Errorf("got %s, final %v, %v", receipt, final, err)
	}
}

func orders(n int) []Order {
	all := make([]Order, n)
	for i := range all {
		all[i] = Order{Command: "register-customer", Body: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i))}
	}
	return all
}

func TestBatch(t *testing.T) {
	t.Parallel()
	c := service(t, "", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if n := strings.Count(string(body), "\n"); n != 3 || r.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%d lines of %s", n, r.Header.Get("Content-Type"))
		}
		fmt.Fprintln(w, `{"line":1,"key":"a","replayed":true}`)
		fmt.Fprintln(w, `{"line":2,"status":409,"code":"already_registered","detail":"with other data"}`)
		fmt.Fprintln(w, `{"line":3,"key":"c"}`)
	})
	var got []string
	err := c.Batch(t.Context(), orders(3), func(i int, a Answer) {
		got = append(got, fmt.Sprint(i, a.Key, a.Replayed, a.Problem))
	})
	want := "0 a true <nil> 1 false already_registered: with other data 2 c false <nil>"
	if s := strings.Join(strings.Fields(strings.Join(got, " ")), " "); err != nil || !equalIgnoringSpace(s, want) {
		t.Errorf("got %q, %v; want %q", s, err, want)
	}
}

func equalIgnoringSpace(a, b string) bool {
	return strings.ReplaceAll(a, " ", "") == strings.ReplaceAll(b, " ", "")
}

// An answer that ends early leaves what it said, and says that it ended.
func TestBatchCutOff(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"nothing more": `{"line":1,"key":"a"}` + "\n",
		"half a line":  `{"line":1,"key":"a"}` + "\n" + `{"line":2,"ke`,
		"stopping":     `{"line":1,"key":"a"}` + "\n" + `{"line":2,"status":503,"code":"shutting_down","detail":"x"}` + "\n",
	} {
		c := service(t, "", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, answer)
		})
		receipts := 0
		err := c.Batch(t.Context(), orders(3), func(_ int, a Answer) {
			if a.Problem == nil {
				receipts++
			}
		})
		if !errors.Is(err, ErrCutOff) || receipts != 1 {
			t.Errorf("%s: %d receipts, %v", name, receipts, err)
		}
	}
}

// Answers out of order would be given to other commands.
func TestBatchOutOfOrder(t *testing.T) {
	t.Parallel()
	c := service(t, "", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprintln(w, `{"line":2,"key":"b"}`)
	})
	answered := 0
	if err := c.Batch(t.Context(), orders(2), func(int, Answer) { answered++ }); err == nil || answered != 0 {
		t.Errorf("%d answers, %v", answered, err)
	}
}
