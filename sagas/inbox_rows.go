package sagas

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
)

const dueNews = `state IN ('received', 'deferred', 'failed') AND next_try_at <= clock_timestamp()`

// claimNews reads and locks events that are due and that no other replica has.
func claimNews(ctx context.Context, tx pgx.Tx, only string) ([]*item, error) {
	where := dueNews
	if only != "" {
		where += ` AND event_id = $2`
	} else {
		where += ` AND $2 = ''`
	}
	rows, err := tx.Query(ctx, `SELECT news, source, attempts, extract(epoch FROM clock_timestamp() - received_at)::bigint,
			coalesce(customer_id, ''), coalesce(billing_period, ''), coalesce(note, '')
		FROM webhook_inbox WHERE `+where+` ORDER BY next_try_at LIMIT $1 FOR UPDATE SKIP LOCKED`, inboxBatch, only)
	if err != nil {
		return nil, fmt.Errorf("claim news: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*item, error) {
		var l item
		var text []byte
		var seconds int64
		var customer, period string
		if err := row.Scan(&text, &l.source, &l.attempts, &seconds, &customer, &period, &l.note); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &l.News); err != nil {
			return nil, fmt.Errorf("read news: %w", err)
		}
		l.age = time.Duration(seconds) * time.Second
		if p, err := domain.ParsePeriod(period); err == nil && customer != "" {
			l.bill = bill{domain.CustomerID(customer), p}
		}
		return &l, nil
	})
}

// findBills names the bills of news without markers by the intent or charge
// that they are about.
func findBills(ctx context.Context, tx pgx.Tx, items []*item) error {
	var intents, charges []string
	for _, l := range items {
		if l.bill == (bill{}) {
			intent, charge := l.ids()
			intents, charges = append(intents, intent), append(charges, charge)
		}
	}
	if len(intents) == 0 {
		return nil
	}
	// Rows know intents. Of a bill that was recovered there is no row, but other
	// news may have come with markers, or it was imported.
	rows, err := tx.Query(ctx, `
		SELECT intent_id, '', customer_id, billing_period FROM billing_records WHERE intent_id = ANY($1)
		UNION ALL
		SELECT coalesce(intent_id, ''), coalesce(charge_id, ''), customer_id, billing_period FROM webhook_inbox
		WHERE customer_id IS NOT NULL AND (intent_id = ANY($1) OR charge_id = ANY($2))
		UNION ALL
		SELECT '', charge_id, customer_id, billing_period FROM imported_charges WHERE charge_id = ANY($2)`, intents, charges)
	if err != nil {
		return fmt.Errorf("find the bills of news: %w", err)
	}
	defer rows.Close()
	byIntent, byCharge := map[string]bill{}, map[string]bill{}
	for rows.Next() {
		var intent, charge, customer, period string
		if err := rows.Scan(&intent, &charge, &customer, &period); err != nil {
			return fmt.Errorf("find the bills of news: %w", err)
		}
		p, err := domain.ParsePeriod(period)
		if err != nil {
			return fmt.Errorf("find the bills of news: %w", err)
		}
		byIntent[intent], byCharge[charge] = bill{domain.CustomerID(customer), p}, bill{domain.CustomerID(customer), p}
	}
	delete(byIntent, "")
	delete(byCharge, "")
	for _, l := range items {
		intent, charge := l.ids()
		if b, ok := byIntent[intent]; ok && l.bill == (bill{}) {
			l.bill = b
		}
		if b, ok := byCharge[charge]; ok && l.bill == (bill{}) {
			l.bill = b
		}
	}
	return rows.Err()
}

// saveNews writes what became of events.
func saveNews(ctx context.Context, tx pgx.Tx, items []*item) error {
	n := len(items)
	events, states, notes, customers, periods := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	attempts, waits := make([]int32, n), make([]int64, n)
	for i, l := range items {
		events[i], states[i], notes[i], attempts[i], waits[i] = l.EventID, l.state, l.note, int32(l.attempts), l.wait.Milliseconds()
		if l.wait < 0 {
			waits[i] = -1
		}
		if l.bill != (bill{}) {
			customers[i], periods[i] = string(l.bill.customer), l.bill.period.String()
		}
	}
	_, err := tx.Exec(ctx, `
		UPDATE webhook_inbox w SET state = u.state, note = u.note, attempts = u.attempts,
			customer_id = nullif(u.customer, ''), billing_period = nullif(u.period, ''),
			applied_at = CASE WHEN u.state = 'applied' THEN clock_timestamp() END,
			next_try_at = CASE WHEN u.wait < 0 THEN 'infinity' ELSE clock_timestamp() + u.wait * interval '1 millisecond' END
		FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::text[], $6::text[], $7::bigint[]) AS u(event, state, note, attempts, customer, period, wait)
		WHERE w.event_id = u.event`, events, states, notes, attempts, customers, periods, waits)
	if err != nil {
		return fmt.Errorf("save %d events: %w", n, err)
	}
	return nil
}
