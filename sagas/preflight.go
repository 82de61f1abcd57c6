package sagas

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// Preflight writes the pre-flight row of every ChargeRequested, whichever road
// it came by: every parameter of the call to Stripe, frozen, committed before
// anything is sent. It also takes rows out of the collector's hands when their
// bill ends by another road. Wake is called when there may be rows to claim.
//
// It may read the log again from the beginning at any time: attempt 1 is
// inserted or exists, attempt n follows only attempt n−1.
func Preflight(wake func()) tracking.Processor {
	return tracking.Processor{
		Name: "preflight", Kind: tracking.Effectful, Start: tracking.Beginning,
		Events: []string{
			domain.ChargeRequested{}.EventName(), domain.CustomerBilled{}.EventName(), domain.SubscriptionResumed{}.EventName(), domain.SubscriptionCancelled{}.EventName(),
			domain.BillClosing{}.EventName(), domain.BillSettled{}.EventName(), domain.BillWrittenOff{}.EventName(), domain.ChargeVoided{}.EventName(),
			domain.ChargeReleased{}.EventName(),
		},
		PageSize: preflightPage, Partitions: eventstore.Partitions, Pace: sagaPace,
		Handler: tracking.HandlerFunc(preflight),
		AfterCommit: func(*tracking.Page) {
			crashpoint.Reach("preflight.committed")
			wake()
		},
	}
}

const preflightPage = 256

func preflight(ctx context.Context, p *tracking.Page) error {
	var first, later []eventstore.Recorded
	var paid, void, closing []ending
	var goOn []string // whose bills no longer wait for the end of a pause
	writes := &pgx.Batch{}
	for _, r := range p.Events {
		switch e := r.Event.(type) {
		case domain.ChargeRequested:
			if e.Attempt == 1 {
				first = append(first, r)
			} else {
				later = append(later, r)
			}
		case domain.CustomerBilled: // the collector has moved the row itself; this is for every other road
			paid = append(paid, ending{e.CustomerID, e.BillingPeriod, r.Position})
			if e.Source == domain.SourceImport {
				writes.Queue(`INSERT INTO imported_charges (charge_id, customer_id, billing_period) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
					e.ChargeID, string(e.CustomerID), e.BillingPeriod.String())
			}
		case domain.BillSettled:
			void = append(void, ending{e.CustomerID, e.BillingPeriod, r.Position})
		case domain.BillWrittenOff:
			void = append(void, ending{e.CustomerID, e.BillingPeriod, r.Position})
		case domain.ChargeVoided:
			void = append(void, ending{e.CustomerID, e.BillingPeriod, r.Position})
		case domain.BillClosing:
			closing = append(closing, ending{e.CustomerID, e.BillingPeriod, r.Position})
		case domain.ChargeReleased:
			writes.Queue(`UPDATE billing_records SET state = 'reserved', next_try_at = NULL, updated_at = clock_timestamp()
				WHERE customer_id = $1 AND billing_period = $2 AND state IN ('waiting', 'needs_review')`, string(e.CustomerID), e.BillingPeriod.String())
		case domain.SubscriptionResumed:
			goOn = append(goOn, string(e.CustomerID))
		case domain.SubscriptionCancelled: // a pause has ended with the subscription
			goOn = append(goOn, string(e.CustomerID))
		}
	}
	if p.Redelivery() {
		ended, err := overtaken(ctx, p, append(first, later...))
		if err != nil {
			return err
		}
		paid, void, closing = append(paid, ended.paid...), append(void, ended.void...), append(closing, ended.closing...)
	}
	if err := reserve(ctx, p.Tx, first); err != nil {
		return err
	}
	if err := advance(ctx, p.Tx, later); err != nil {
		return err
	}
	end(writes, stateClosing, `'succeeded', 'void', 'closing', 'sending'`, closing)
	end(writes, stateVoid, `'succeeded', 'void'`, void)
	end(writes, stateSucceeded, `'succeeded'`, paid)
	if len(goOn) > 0 {
		writes.Queue(`UPDATE billing_records SET state = 'reserved', next_try_at = NULL, updated_at = clock_timestamp()
			WHERE customer_id = ANY($1) AND state = 'waiting'`, goOn)
	}
	if writes.Len() > 0 {
		if err := p.Tx.SendBatch(ctx, writes).Close(); err != nil {
			return fmt.Errorf("preflight: end bills: %w", err)
		}
	}
	crashpoint.Reach("preflight.committing")
	return nil
}

// ending is a bill that leaves the collector's hands, or is to be closed by it.
type ending struct {
	customer domain.CustomerID
	period   domain.Period
	position int64
}

// end moves rows that are not in one of the states except. The fence rises, so
// that a worker that still holds a row writes nothing but a success.
func end(writes *pgx.Batch, state, except string, endings []ending) {
	if len(endings) == 0 {
		return
	}
	customers, periods, positions := make([]string, len(endings)), make([]string, len(endings)), make([]int64, len(endings))
	for i, e := range endings {
		customers[i], periods[i], positions[i] = string(e.customer), e.period.String(), e.position
	}
	writes.Queue(`UPDATE billing_records r SET state = $1, fence = fence + 1, lease_until = NULL, next_try_at = NULL, last_position = u.position, updated_at = clock_timestamp()
		FROM unnest($2::text[], $3::text[], $4::bigint[]) AS u(customer, period, position)
		WHERE r.customer_id = u.customer AND r.billing_period = u.period AND r.last_position < u.position AND r.state NOT IN (`+except+`)`,
		state, customers, periods, positions)
}

// params is what the row freezes of a request: whatever is built tomorrow must
// send the same bytes under the same key.
type params struct {
	AmountMinor      int64             `json:"amount_minor"`
	Currency         domain.Currency   `json:"currency"`
	StripeCustomerID string            `json:"stripe_customer_id"`
	PaymentMethodID  string            `json:"payment_method_id"`
	OffSession       bool              `json:"off_session"`
	Metadata         map[string]string `json:"metadata"`
}

type requestColumns struct {
	customers, periods, keys, currencies, stripes, methods, params []string
	partitions                                                     []int16
	attempts                                                       []int32
	amounts, positions                                             []int64
}

func columnsOf(requests []eventstore.Recorded) (c requestColumns, err error) {
	for _, r := range requests {
		e := r.Event.(domain.ChargeRequested)
		frozen, err := json.Marshal(params{
			e.Minor, e.Currency, e.StripeCustomerID, e.PaymentMethodID, true,
			Order{CustomerID: e.CustomerID, Period: e.BillingPeriod}.Markers(),
		})
		if err != nil {
			return c, fmt.Errorf("preflight: freeze the parameters of %s: %w", r.Place, err)
		}
		c.customers, c.periods, c.keys = append(c.customers, string(e.CustomerID)), append(c.periods, e.BillingPeriod.String()), append(c.keys, string(e.Key))
		c.currencies, c.stripes, c.methods = append(c.currencies, string(e.Currency)), append(c.stripes, e.StripeCustomerID), append(c.methods, e.PaymentMethodID)
		c.params, c.partitions, c.attempts = append(c.params, string(frozen)), append(c.partitions, r.Partition), append(c.attempts, int32(e.Attempt))
		c.amounts, c.positions = append(c.amounts, e.Minor), append(c.positions, r.Position)
	}
	return c, nil
}

// reserve inserts the rows of first attempts.
func reserve(ctx context.Context, tx pgx.Tx, requests []eventstore.Recorded) error {
	if len(requests) == 0 {
		return nil
	}
	c, err := columnsOf(requests)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO billing_records (customer_id, billing_period, partition, attempt, key, amount, currency, stripe_customer_id, payment_method, params, state, last_position)
		SELECT customer, period, partition, 1, key, amount, currency, stripe, method, params::json, 'reserved', position
		FROM unnest($1::text[], $2::text[], $3::smallint[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bigint[])
			AS u(customer, period, partition, key, amount, currency, stripe, method, params, position)
		ORDER BY customer, period
		ON CONFLICT (customer_id, billing_period) DO NOTHING`,
		c.customers, c.periods, c.partitions, c.keys, c.amounts, c.currencies, c.stripes, c.methods, c.params, c.positions)
	if err != nil {
		return fmt.Errorf("preflight: reserve %d rows: %w", len(requests), err)
	}
	return nil
}

// advance moves rows to their next attempts. Intent and fence stay, what
// belongs to the former attempt is cleared. It is an error if the row's
// attempt is the one before and is not proven to have failed.
func advance(ctx context.Context, tx pgx.Tx, requests []eventstore.Recorded) error {
	if len(requests) == 0 {
		return nil
	}
	c, err := columnsOf(requests)
	if err != nil {
		return err
	}
	var behind int
	for i := range requests { // few: a page holds a retry or two, and attempts of one bill follow one another
		tag, err := tx.Exec(ctx, `
			UPDATE billing_records SET attempt = $3, key = $4, payment_method = $5, stripe_customer_id = $6, params = $7::json, state = 'reserved', start = 0,
				latest_charge = NULL, again = 0, create_again = 0, first_sent_at = NULL, last_sent_at = NULL, last_sent_wall = NULL,
				quiet_seconds = 0, tries = 0, outcome = NULL, lease_until = NULL, next_try_at = NULL, last_position = $8, updated_at = clock_timestamp()
			WHERE customer_id = $1 AND billing_period = $2 AND attempt = $3 - 1 AND state IN ('declined', 'rejected')`,
			c.customers[i], c.periods[i], c.attempts[i], c.keys[i], c.methods[i], c.stripes[i], c.params[i], c.positions[i])
		if err != nil {
			return fmt.Errorf("preflight: advance: %w", err)
		}
		if tag.RowsAffected() == 1 {
			continue
		}
		err = tx.QueryRow(ctx, `SELECT count(*) FROM billing_records WHERE customer_id = $1 AND billing_period = $2 AND attempt < $3 AND state NOT IN ('succeeded', 'void', 'closing')`,
			c.customers[i], c.periods[i], c.attempts[i]).Scan(&behind)
		if err != nil {
			return fmt.Errorf("preflight: advance: %w", err)
		}
		if behind > 0 {
			return fmt.Errorf("preflight: attempt %d of %s %s follows one that its row does not show as failed", c.attempts[i], c.customers[i], c.periods[i])
		}
	}
	return nil
}
