package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// C107: what is secret shows in no answer, no log line at debug level, no
// metric and no row.
func TestSecretsStayInside(t *testing.T) {
	t.Parallel()
	const marker = "mark3r"
	// A database that cannot be reached, whose address holds a password.
	dead, err := pgxpool.New(t.Context(), "postgres://billing:"+marker+"-password@127.0.0.1:1/billing?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	token := tokensOf(t, "ci:read+dispatch+operate:"+hashOf(marker+"-token"))
	auth := []string{"Authorization", "Bearer " + marker + "-token", "Cookie", "session=" + marker, "X-Api-Key", marker}
	var outputs strings.Builder
	instances := []*instance{start(t, token), startOn(t, dead, token), start(t, token, func(d *Deps, _ *Limits) {
		d.Clock = func(context.Context) (time.Time, error) { panic(errors.New(marker)) }
	})}
	for _, i := range instances {
		body := `{"customer_id":"alice","stripe_customer_id":"cus_1","payment_method_id":"pm_1"}`
		for _, a := range []answer{
			i.send("register-customer", body, auth...),
			i.send("register-customer", body, "Authorization", "Bearer wrong-"+marker),
			i.send("register-customer", body, "Authorization", "Basic "+marker),
			i.send("register-customer", strings.ReplaceAll(body, "pm_1", marker), auth...),
			i.send("register-customer", `{"customer_id":"`+marker+`:"}`, auth...),
			i.send("register-customer", `{"card_number":"`+marker+`"}`, auth...),
			i.send("register-customer", marker, auth...),
			i.send("charge-billing", `{"customer_id":"alice","billing_period":"`+marker+`","amount_minor":"`+marker+`","currency":"`+marker+`"}`, auth...),
			i.send("settle-billing", `{}`, append(auth, idempotencyHeader, marker+"ü")...),
			i.batch(`{"command":"register-customer","body":`+body+`}`+"\n"+`{"command":"x","body":{"a":"`+marker+`"}}`+"\n"+marker, auth...),
			i.get("/v1/customers?cursor="+marker, auth...), i.get("/v1/charges?status="+marker, auth...),
			i.get("/v1/events?after="+marker, auth...), i.get("/v1/customers?limit="+marker, auth...), i.get("/v1/customers?order="+marker, auth...),
			i.get("/v1/customers", auth...), i.get("/v1/customers/alice", auth...), i.get("/v1/processors", auth...), i.get("/v1/dead-letters", auth...),
			i.get("/"+marker, auth...), i.get("/readyz"), i.get("/healthz"), i.get("/metrics"), i.get("/openapi.json"), i.get("/"),
			i.do(i.request(http.MethodDelete, "/v1/customers", marker, auth...)),
		} {
			outputs.WriteString(a.body)
			for name, values := range a.header {
				outputs.WriteString(name + ": " + strings.Join(values, ",") + "\n")
			}
		}
		i.stop()
		outputs.WriteString(i.logs.String())
	}
	if at := strings.Index(outputs.String(), marker); at >= 0 {
		t.Errorf("a secret shows: …%s…", outputs.String()[max(0, at-300):min(outputs.Len(), at+100)])
	}
	var rows string
	err = instances[0].pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(e::text, ''), '') || coalesce((SELECT string_agg(k::text, '') FROM request_keys k), '')
		|| coalesce((SELECT string_agg(c::text, '') FROM command_keys c), '') FROM events e`).Scan(&rows)
	if err != nil || rows == "" || strings.Contains(rows, marker) {
		t.Errorf("the rows hold a secret, or nothing: %v\n%s", err, rows)
	}
}
