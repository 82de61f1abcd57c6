package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestASettingOfTheServerIsNotOurs: a server or database whose defaults are
// anything at all (statements compiled, every transaction serializable, dates
// of another order, another time zone) changes neither what the service does
// nor how long it takes: the settings that matter are its sessions' own.
func TestASettingOfTheServerIsNotOurs(t *testing.T) {
	h := newHouse(t)
	admin, err := pgx.Connect(t.Context(), h.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	var database string
	if err := admin.QueryRow(t.Context(), `SELECT current_database()`).Scan(&database); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"jit": "on", "jit_above_cost": "0", "jit_optimize_above_cost": "0", "jit_inline_above_cost": "0",
		"default_transaction_isolation": "serializable", "timezone": "Pacific/Apia", "datestyle": "German, DMY",
		"intervalstyle": "sql_standard", "bytea_output": "escape", "extra_float_digits": "-3", "plan_cache_mode": "force_custom_plan",
		"search_path": "elsewhere, public",
	} {
		if _, err := admin.Exec(t.Context(), fmt.Sprintf(`ALTER DATABASE %q SET %s = %s`, database, name, quoted(name, value))); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var app *App
	r := h.startApp(twoTokens(t), func(a *App) { app = a })
	r.token = "operator"
	for name, want := range map[string]string{"jit": "off", "default_transaction_isolation": "read committed", "plan_cache_mode": "force_generic_plan"} {
		var got string
		if err := app.pool.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q in sessions of the service (%v), want %q", name, got, err, want)
		}
	}
	r.subscribe("acme", "bolt")
	awaitFor(t, time.Minute, "both are charged", func() bool { return len(h.charges("acme")) == 1 && len(h.charges("bolt")) == 1 })
	await(t, "it is ready", func() bool {
		status, _ := r.send("operator", http.MethodGet, "/readyz", "")
		return status == http.StatusOK
	},
		func() string { return r.read("/readyz") })
	var story struct {
		Record struct {
			FirstSentAt time.Time `json:"first_sent_at"`
		} `json:"billing_record"`
	}
	if err := json.Unmarshal([]byte(r.read("/v1/customers/acme/periods/2026-11")), &story); err != nil {
		t.Fatal(err)
	}
	if at := story.Record.FirstSentAt; at.Format(time.DateOnly) != "2026-11-15" {
		t.Errorf("it was first sent on %s", at)
	}
}

// quoted is a setting's value as SQL; lists are given as they are.
func quoted(name, value string) string {
	if name == "search_path" {
		return value
	}
	return "'" + strings.ReplaceAll(value, "'", "''") + "'"
}
