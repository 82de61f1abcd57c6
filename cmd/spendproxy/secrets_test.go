package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Case C107, the proxy's part: no marker value comes out, however calls end: in
// logs at debug level, answers, metrics or the database.
func TestC107_NoSecretComesOut(t *testing.T) {
	t.Parallel()
	const card = "MARKERcard4242424242424242"
	stripe := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		// Stripe's errors may quote the key, masked or not, and card data.
		quoted := fmt.Sprintf(`{"error":{"type":"invalid_request_error","message":"Invalid API Key provided: %s; card %s"}}`, stripeKey, card)
		switch key := r.Header.Get("Idempotency-Key"); {
		case strings.HasPrefix(key, "decline"):
			says(402, `{"error":{"type":"card_error","code":"card_declined","message":"declined"}}`)(w, r)
		case strings.HasPrefix(key, "unauthorised"):
			says(401, quoted)(w, r)
		case strings.HasPrefix(key, "drop"):
			panic(http.ErrAbortHandler)
		default:
			says(200, aCharge)(w, r)
		}
	})
	r := newRigAt(t, stripe.URL, nil)
	secret := r.free(3000)
	form := url.Values{"amount": {"1000"}, "currency": {"usd"}, "source": {"pm_1"}}
	var out strings.Builder
	see := func(what string, a answer) {
		fmt.Fprintf(&out, "%s: %d %v %s\n", what, a.status, a.header, a.body)
	}
	see("success", r.post(secret, "/v1/charges", "success", form))
	see("decline", r.post(secret, "/v1/charges", "decline", form))
	see("drop", r.post(secret, "/v1/charges", "drop", form))
	see("refused", r.post(secret, "/v1/charges", "refused", url.Values{"amount": {"5000"}, "currency": {"usd"}, "source": {"pm_1"}}))
	see("path", r.post(secret, "/v1/payouts", "path", form))
	see("raw card", r.post(secret, "/v1/charges", "raw", url.Values{"amount": {"1000"}, "currency": {"usd"}, "source[number]": {card}}))
	see("bad form", r.post(secret, "/v1/charges", "bad", url.Values{"amount": {card}, "currency": {"usd"}}))
	see("bad query", r.get(secret, "/v1/charges?email="+card))
	see("nobody", r.post("vk_0123456789abcdef_MARKERunknown", "/v1/charges", "nobody", form))
	see("no key", r.post(secret, "/v1/charges", "", form))
	see("metrics", r.get(secret, "/metrics"))
	// What Stripe says about cards is the caller's: it is given on, and kept
	// nowhere. What it says about the proxy's key is not.
	if a := r.post(secret, "/v1/charges", "unauthorised", form); a.status != 401 || !strings.Contains(a.body, card) || strings.Contains(a.body, stripeKey) {
		t.Errorf("Stripe's 401: %d %s", a.status, a.body)
	}
	eventually(t, "the audit is written", func() bool { return strings.Contains(dump(t, r.dsn), "path_refused") })

	for _, settings := range [][]string{
		{"SPENDPROXY_DATABASE_URL=postgres://user:MARKERpassword@127.0.0.1:1/x"},
		{"SPENDPROXY_DATABASE_URL=postgres://user:MARKERpassword@[bad/x", "SPENDPROXY_STRIPE_KEY=MARKERkey", "SPENDPROXY_ADMIN_TOKEN=MARKER"},
		{"SPENDPROXY_UPSTREAM=http://user:MARKERpassword@127.0.0.1/"},
	} {
		cmd := exec.Command(os.Args[0])
		var text bytes.Buffer
		cmd.Stdout, cmd.Stderr = &text, &text
		cmd.Env = append(withoutTokens(), append([]string{"SPENDPROXY_TEST_MAIN=1", "SPENDPROXY_LISTEN=127.0.0.1:0", "SPENDPROXY_STRIPE_KEY=" + stripeKey, "SPENDPROXY_DATABASE_URL=" + r.dsn}, settings...)...)
		if err := cmd.Run(); err == nil {
			t.Errorf("%v: it runs", settings[0][:20])
		} else if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Error(err)
		}
		out.WriteString(text.String())
	}
	for name, text := range map[string]string{"the answers and the settings": out.String(), "the log": r.log.String(), "the database": dump(t, r.dsn), "a dump of the app": fmt.Sprintf("%+v %#v", r.app.settings.Key, r.app.settings.Database)} {
		for _, marker := range []string{"MARKER", secret[len(secret)-20:]} {
			if i := strings.Index(text, marker); i >= 0 {
				t.Errorf("%s shows %s: …%s…", name, marker, text[max(0, i-200):min(len(text), i+40)])
			}
		}
	}
	if !strings.Contains(r.log.String(), "call refused") {
		t.Error("nothing was logged")
	}
}

// dump is every row of every table of the database, as text.
func dump(t *testing.T, dsn string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), `SELECT query_to_xml(format('SELECT * FROM %I.%I', table_schema, table_name), true, false, '')::text
		FROM information_schema.tables WHERE table_schema = 'spendproxy' AND table_type = 'BASE TABLE'`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 5 {
		t.Fatalf("%d tables: %v", len(tables), err)
	}
	return strings.Join(tables, "\n")
}
