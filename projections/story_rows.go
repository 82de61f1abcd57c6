package projections

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// readRows reads what stands about the bill outside the log.
func (s *Story) readRows(ctx context.Context, tx pgx.Tx, id domain.CustomerID, p domain.Period, facts []eventstore.Recorded) error {
	keys := []string{}
	for _, fact := range facts {
		if fact.CommandKey != "" {
			keys = append(keys, string(fact.CommandKey))
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(`SELECT key, command, recorded_at FROM command_keys WHERE key = ANY ($1) ORDER BY recorded_at, key`, keys).Query(func(rows pgx.Rows) (err error) {
		s.Commands, err = pgx.AppendRows(s.Commands, rows, func(row pgx.CollectableRow) (c CommandKey, err error) {
			err = row.Scan(&c.Key, &c.Command, &c.RecordedAt)
			c.RecordedAt = c.RecordedAt.UTC()
			return c, err
		})
		return err
	})
	batch.Queue(`SELECT attempt, start, key, amount, currency, stripe_customer_id, payment_method, params::text, state, intent_id, intent_no, latest_charge, again,
			lease_until, fence, epoch, first_sent_at, last_sent_at, last_sent_wall, next_try_at, tries, outcome::text, created_at, updated_at
		FROM billing_records WHERE customer_id = $1 AND billing_period = $2`, string(id), p.String()).QueryRow(func(row pgx.Row) error {
		var b BillingRecord
		var minor int64
		var currency, params string
		var outcome *string
		err := row.Scan(&b.Attempt, &b.Start, &b.Key, &minor, &currency, &b.StripeCustomerID, &b.PaymentMethod, &params, &b.State, &b.IntentID, &b.IntentNo,
			&b.LatestCharge, &b.Again, &b.LeaseUntil, &b.Fence, &b.Epoch, &b.FirstSentAt, &b.LastSentAt, &b.LastSentWall, &b.NextTryAt, &b.Tries,
			&outcome, &b.CreatedAt, &b.UpdatedAt)
		b.Amount, b.Params, b.Outcome = money(minor, currency), json.RawMessage(params), raw(outcome)
		b.CreatedAt, b.UpdatedAt = b.CreatedAt.UTC(), b.UpdatedAt.UTC()
		for _, t := range []**time.Time{&b.LeaseUntil, &b.FirstSentAt, &b.LastSentAt, &b.LastSentWall, &b.NextTryAt} {
			*t = inUTC(*t)
		}
		return found(err, &s.Record, b)
	})
	batch.Queue(`SELECT id, state::text, step, attempt, key, refusal, version, updated_at FROM sagas WHERE saga = $1 AND id = $2`,
		BillingSaga, SagaID(id, p)).QueryRow(func(row pgx.Row) error {
		var saga Saga
		var state string
		err := row.Scan(&saga.ID, &state, &saga.Step, &saga.Attempt, &saga.Key, &saga.Refusal, &saga.Version, &saga.UpdatedAt)
		saga.State, saga.UpdatedAt = json.RawMessage(state), saga.UpdatedAt.UTC()
		return found(err, &s.Saga, saga)
	})
	batch.Queue(`SELECT processor, partition, position, event_type, status, attempts, error, enqueued_at FROM dead_letters
		WHERE sequence_key = $1 AND status IN ('parked', 'behind') ORDER BY position, processor`, id.Stream().SequenceKey()).Query(func(rows pgx.Rows) (err error) {
		s.Parked, err = pgx.AppendRows(s.Parked, rows, func(row pgx.CollectableRow) (d DeadLetter, err error) {
			err = row.Scan(&d.Processor, &d.Position.Partition, &d.Position.Position, &d.Type, &d.Status, &d.Attempts, &d.Error, &d.Since)
			d.Since = d.Since.UTC()
			return d, err
		})
		return err
	})
	batch.Queue(`SELECT refund_id, charge_id, key, amount, currency, state, stripe_refund_id, lease_until, fence, first_sent_at, last_sent_at, next_try_at, tries,
			outcome::text, created_at, updated_at
		FROM refund_records WHERE customer_id = $1 AND billing_period = $2 ORDER BY created_at, refund_id`, string(id), p.String()).Query(func(rows pgx.Rows) (err error) {
		s.Refunds, err = pgx.AppendRows(s.Refunds, rows, scanRefundRecord)
		return err
	})
	batch.Queue(`SELECT event_id, type, object_id, says, api_version, source, state, coalesce(note, ''), created, received_at, applied_at
		FROM webhook_inbox WHERE customer_id = $1 AND billing_period = $2 ORDER BY received_at, event_id LIMIT $3`,
		string(id), p.String(), webhooksMost).Query(func(rows pgx.Rows) (err error) {
		s.Webhooks, err = pgx.AppendRows(s.Webhooks, rows, func(row pgx.CollectableRow) (w Webhook, err error) {
			err = row.Scan(&w.EventID, &w.Type, &w.ObjectID, &w.Says, &w.APIVersion, &w.Source, &w.State, &w.Note, &w.Created, &w.ReceivedAt, &w.AppliedAt)
			w.Created, w.ReceivedAt, w.AppliedAt = w.Created.UTC(), w.ReceivedAt.UTC(), inUTC(w.AppliedAt)
			return w, err
		})
		return err
	})
	return tx.SendBatch(ctx, batch).Close()
}

// webhooksMost bounds a story: Stripe may tell the same thing many times.
const webhooksMost = 1000

func scanRefundRecord(row pgx.CollectableRow) (r RefundRecord, err error) {
	var minor int64
	var currency string
	var outcome *string
	err = row.Scan(&r.RefundID, &r.ChargeID, &r.Key, &minor, &currency, &r.State, &r.StripeRefundID, &r.LeaseUntil, &r.Fence, &r.FirstSentAt, &r.LastSentAt,
		&r.NextTryAt, &r.Tries, &outcome, &r.CreatedAt, &r.UpdatedAt)
	r.Amount, r.Outcome = money(minor, currency), raw(outcome)
	r.CreatedAt, r.UpdatedAt = r.CreatedAt.UTC(), r.UpdatedAt.UTC()
	for _, t := range []**time.Time{&r.LeaseUntil, &r.FirstSentAt, &r.LastSentAt, &r.NextTryAt} {
		*t = inUTC(*t)
	}
	return r, err
}

// found sets *at to v, unless there is no such row.
func found[T any](err error, at **T, v T) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	*at = &v
	return err
}

func raw(s *string) json.RawMessage {
	if s == nil {
		return json.RawMessage("null")
	}
	return json.RawMessage(*s)
}
