-- +goose Up

-- The pre-flight record of a refund: one row a refund that was asked for,
-- committed before any call to Stripe, every parameter frozen. The log is the
-- truth; this row is what the refund worker works from. Never deleted.
CREATE TABLE refund_records (
    customer_id      text        NOT NULL,
    refund_id        text        NOT NULL,               -- the caller's
    billing_period   text        NOT NULL,
    partition        smallint    NOT NULL,
    charge_id        text        NOT NULL,
    key              text        NOT NULL,               -- idempotency key at Stripe
    amount           bigint      NOT NULL CHECK (amount > 0),
    currency         text        NOT NULL,
    state            text        NOT NULL CHECK (state IN ('requested', 'sending', 'unknown', 'pending', 'succeeded', 'failed', 'cancelled', 'refused')),
    stripe_refund_id text,                               -- write-once
    lease_until      timestamptz,                        -- lease time: the database's clock
    fence            bigint      NOT NULL DEFAULT 0,
    first_sent_at    timestamptz,                        -- business time; NULL: no send is unresolved
    last_sent_at     timestamptz,                        -- business time
    last_sent_wall   timestamptz,                        -- the database's clock
    next_try_at      timestamptz,                        -- back-off, the database's clock
    tries            integer     NOT NULL DEFAULT 0,     -- consecutive tries without a decision
    outcome          json,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (customer_id, refund_id)
) WITH (fillfactor = 70);
CREATE INDEX refund_records_claimable ON refund_records
    ((coalesce(greatest(lease_until, next_try_at), '-infinity'::timestamptz)))
    WHERE state IN ('requested', 'sending', 'unknown', 'pending');

-- +goose Down
DROP TABLE refund_records;
