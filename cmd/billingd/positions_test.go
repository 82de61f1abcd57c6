package main

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestTheSequenceGoesBack: the server is replaced by one that has all rows and
// not the sequence's value (a subscriber of logical replication). What is
// recorded there gets places above those that processors have read, so that
// nothing is passed over: everybody is charged.
func TestTheSequenceGoesBack(t *testing.T) {
	h := newHouse(t)
	said := &heard{}
	r := h.open(twoTokens(t), nil, said)
	r.token = "operator"
	r.subscribe("acme", "bolt", "carl")
	awaitFor(t, time.Minute, "three are charged", func() bool { n, _ := h.charged(); return n == 3 })
	admin, err := pgx.Connect(t.Context(), h.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	var before int64
	if err := admin.QueryRow(t.Context(), `SELECT max(position) FROM events`).Scan(&before); err != nil {
		t.Fatal(err)
	}
	h.sql(admin, `ALTER SEQUENCE events_position_seq RESTART WITH 1`, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	await(t, "it answers", func() bool { status, _ := r.send("operator", "GET", "/v1/customers/acme", ""); return status == 200 })
	r.subscribe("dora", "emil", "fred")
	awaitFor(t, time.Minute, "all are charged", func() bool { n, doubled := h.charged(); return n == 6 && !doubled })
	var low int
	if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE position <= $1 AND sequence_key IN ('dora', 'emil', 'fred')`, before).Scan(&low); err != nil || low > 0 {
		t.Errorf("%d facts were recorded below %d, which processors have read (%v)", low, before, err)
	}
	if said.count() == 0 {
		t.Error("the log does not say that the sequence was behind")
	}
}
