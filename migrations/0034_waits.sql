-- +goose Up

-- Bills that stand still, or are held up at Stripe: what health and metrics
-- count, without reading those that are paid.
CREATE INDEX billing_records_waits ON billing_records (state)
    WHERE state IN ('unknown', 'held', 'waiting', 'needs_review', 'action_required', 'closing');
CREATE INDEX refund_records_waits ON refund_records (state)
    WHERE state IN ('unknown', 'pending', 'needs_review');

-- +goose Down
DROP INDEX refund_records_waits;
DROP INDEX billing_records_waits;
