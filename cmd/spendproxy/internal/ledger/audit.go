package ledger

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// auditRow is a row of the audit on its way.
type auditRow struct {
	Recorded
	again bool // it may have been written before
}

// rowOf is what a call says about itself.
func rowOf(id, phase string, at time.Time, vaultKey string, c policy.Call) auditRow {
	row := auditRow{Recorded: Recorded{
		Call: id, Phase: phase, At: at, VaultKey: vaultKey, Method: c.Method, Path: c.Path, Rule: c.Rule,
		Amount: c.Amount, Currency: c.Currency, IdempotencyKey: c.Key, Object: c.Object,
	}}
	if row.Object == "" {
		if row.Object = c.Charge; row.Object == "" {
			row.Object = c.Intent
		}
	}
	row.setBill(c.Bill)
	return row
}

func (r *auditRow) setBill(b policy.BillID) { r.Customer, r.Period = columnsOf(b) }

// columnsOf is a bill as the tables hold it; none is two empty texts.
func columnsOf(b policy.BillID) (customer, period string) {
	if b.IsZero() {
		return "", ""
	}
	return string(b.Customer), b.Period.String()
}

// queueAudit queues the writing of rows. A row that may have been written before,
// by a commit whose answer was lost, is looked for.
func queueAudit(b *pgx.Batch, rows []auditRow) {
	n := len(rows)
	texts := make([][]string, 15)
	for i := range texts {
		texts[i] = make([]string, n)
	}
	at, amounts, latencies, statuses := make([]time.Time, n), make([]int64, n), make([]int64, n), make([]int16, n)
	requests, again := make([]string, n), make([]bool, n)
	for i, r := range rows {
		for k, s := range []string{
			r.Call, r.Phase, r.VaultKey, r.Method, r.Path, string(r.Rule), r.Verdict, string(r.Code), r.Reason, r.Customer, r.Period,
			r.Object, string(r.Currency), r.IdempotencyKey, r.Reservation,
		} {
			texts[k][i] = clean(s)
		}
		at[i], amounts[i], statuses[i], latencies[i] = r.At, r.Amount, int16(r.Status), r.Latency.Milliseconds()
		requests[i], again[i] = clean(r.RequestID), r.again
	}
	sql := auditSQL
	if slices.Contains(again, true) {
		b.Queue(plansSQL)
		sql += ` WHERE NOT again OR NOT EXISTS (SELECT FROM spendproxy.audit a
			WHERE a.idempotency_key = n.idempotency_key AND a.idempotency_key <> '' AND a.call = n.call AND a.phase = n.phase)`
	}
	b.Queue(sql,
		texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], texts[6], texts[7], texts[8], texts[9], texts[10],
		texts[11], texts[12], texts[13], texts[14], at, amounts, statuses, latencies, requests, again)
}

const auditSQL = `INSERT INTO spendproxy.audit (call, phase, vault_key, method, path, rule, verdict, code, reason, customer_id, billing_period,
			object, currency, idempotency_key, reservation, at, amount_minor, status, latency_ms, request_id)
		SELECT call, phase, vault_key, method, path, rule, verdict, code, reason, customer_id, billing_period,
			object, currency, idempotency_key, reservation, at, amount_minor, status, latency_ms, request_id
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
			$11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::timestamptz[], $17::bigint[], $18::smallint[], $19::bigint[], $20::text[], $21::bool[])
			AS n(call, phase, vault_key, method, path, rule, verdict, code, reason, customer_id, billing_period,
				object, currency, idempotency_key, reservation, at, amount_minor, status, latency_ms, request_id, again)`

// textMost bounds a text of the audit, in bytes.
const textMost = 500

// clean makes what a caller sent storable as text, and short.
func clean(s string) string {
	if len(s) > textMost {
		s = s[:textMost]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// notesMost is how many notes wait; beyond that they are dropped and counted:
// a crowd that is refused at the door must not hold up the calls.
const notesMost = 8192

// Note writes the audit's rows of a call that Begin did not see. They are
// written a little later, by [Ledger.Run].
func (l *Ledger) Note(n Note) {
	before, after := rowOf(n.ID, "before", n.Began, n.VaultKey, n.Call), rowOf(n.ID, "after", n.Began.Add(n.Latency), n.VaultKey, n.Call)
	rows := []auditRow{before, after}
	for i := range rows {
		r := &rows[i]
		r.Verdict, r.Code, r.Reason, r.Reservation = "allow", n.Verdict.Code, n.Verdict.Reason, "none"
		switch {
		case !n.Verdict.Allow:
			r.Verdict = "refuse"
		case n.Verdict.Code != "":
			r.Verdict = "would_refuse"
		}
	}
	rows[1].Status, rows[1].RequestID, rows[1].Latency = n.Status, n.RequestID, n.Latency
	select {
	case l.notes <- rows:
	default:
		l.metrics.drop(len(rows))
	}
}

// How notes are gathered.
const (
	notesTogether = 1024                  // rows in a transaction
	notesPause    = 20 * time.Millisecond // for which the first one waits for others
)

// writeNotes writes notes together with those that come shortly after them.
func (l *Ledger) writeNotes(ctx context.Context, rows []auditRow) {
	pause := time.NewTimer(notesPause)
	defer pause.Stop()
	for gathering := true; gathering && len(rows) < notesTogether; {
		select {
		case more := <-l.notes:
			rows = append(rows, more...)
		case <-pause.C:
			gathering = false
		case <-ctx.Done():
			gathering = false
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), groupTimeout)
	defer cancel()
	b := &pgx.Batch{}
	queueAudit(b, rows)
	err := l.pool.SendBatch(ctx, b).Close()
	if err != nil && broken(err) {
		b := &pgx.Batch{}
		queueAudit(b, rows)
		err = l.pool.SendBatch(ctx, b).Close()
	}
	if err != nil {
		l.metrics.drop(len(rows))
		l.log.Warn("rows of the audit cannot be written", "rows", len(rows), "error", err)
	}
}

func (l *Ledger) drainNotes(ctx context.Context) {
	for {
		select {
		case rows := <-l.notes:
			l.writeNotes(ctx, rows)
		default:
			return
		}
	}
}

// Calls lists rows of the audit in the order in which they were written, and the
// cursor of the next page, empty at the end.
func (l *Ledger) Calls(ctx context.Context, f CallFilter) (calls []Recorded, next string, err error) {
	limit := limitOf(f.Limit)
	q := &where{}
	q.equals("customer_id", f.Customer)
	q.equals("billing_period", f.Period)
	q.equals("vault_key", f.VaultKey)
	q.equals("idempotency_key", f.IdempotencyKey)
	q.equals("object", f.Object)
	if f.Refused {
		q.is("verdict <> 'allow'")
	}
	if f.After != "" {
		after, err := strconv.ParseInt(f.After, 10, 64)
		if err != nil || after < 0 {
			return nil, "", fmt.Errorf("list calls: %w", invalid("after is no cursor that was given out"))
		}
		q.is("id > " + q.arg(after))
	}
	rows, err := l.pool.Query(ctx, `SELECT id, call, at, phase, vault_key, method, path, rule, verdict, code, reason, customer_id, billing_period, object,
		amount_minor, currency, idempotency_key, reservation, status, request_id, latency_ms FROM spendproxy.audit`+q.text()+` ORDER BY id LIMIT `+q.arg(limit+1), q.args...)
	if err != nil {
		return nil, "", fmt.Errorf("list calls: %w", err)
	}
	defer rows.Close()
	var last int64
	for rows.Next() {
		if len(calls) == limit {
			next = strconv.FormatInt(last, 10)
			break
		}
		var r Recorded
		var currency string
		var milliseconds int64
		err := rows.Scan(&last, &r.Call, &r.At, &r.Phase, &r.VaultKey, &r.Method, &r.Path, &r.Rule, &r.Verdict, &r.Code, &r.Reason, &r.Customer, &r.Period,
			&r.Object, &r.Amount, &currency, &r.IdempotencyKey, &r.Reservation, &r.Status, &r.RequestID, &milliseconds)
		if err != nil {
			return nil, "", fmt.Errorf("list calls: %w", err)
		}
		r.At, r.Currency, r.Latency = r.At.UTC(), domain.Currency(currency), time.Duration(milliseconds)*time.Millisecond
		calls = append(calls, r)
	}
	return calls, next, rows.Err()
}

// limitOf is the size of a page of a list.
func limitOf(n int) int {
	switch {
	case n <= 0:
		return 100
	case n > 1000:
		return 1000
	}
	return n
}

// where builds a condition.
type where struct {
	parts []string
	args  []any
}

func (w *where) arg(v any) string {
	w.args = append(w.args, v)
	return "$" + strconv.Itoa(len(w.args))
}

func (w *where) is(condition string) { w.parts = append(w.parts, condition) }

func (w *where) equals(column, value string) {
	if value != "" {
		w.is(column + " = " + w.arg(value))
	}
}

func (w *where) text() string {
	if len(w.parts) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.parts, " AND ")
}
