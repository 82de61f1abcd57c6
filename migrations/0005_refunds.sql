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

-- What went back of each bill's money, beside the bill.
ALTER TABLE bills
    ADD COLUMN money_back     json    NOT NULL DEFAULT 'null', -- domain.MoneyBack, once something is known
    ADD COLUMN refunded_minor bigint  NOT NULL DEFAULT 0,      -- of the charge that paid: went back, or may have, or is about to
    ADD COLUMN disputed       boolean NOT NULL DEFAULT false;  -- a dispute holds or has taken its money

-- Read model: one row a refund, and one a proposal to refund.
CREATE TABLE refunds (
    customer_id      text        COLLATE "C" NOT NULL,
    billing_period   text        COLLATE "C" NOT NULL,
    no               integer     NOT NULL,               -- within the bill, in the order in which they became known
    partition        smallint    NOT NULL,
    status           text        NOT NULL,               -- the refund's state; of a proposal: proposed, answered or dismissed
    refund_id        text        NOT NULL,               -- '': made outside Billonce, or a proposal
    stripe_refund_id text        NOT NULL,
    charge_id        text        COLLATE "C" NOT NULL,
    amount_minor     bigint      NOT NULL,
    currency         text        NOT NULL,
    code             text        NOT NULL,
    reason           text        NOT NULL,               -- of the status; of a proposal: why it was made
    dismissed        text        NOT NULL,               -- why a proposed refund is not made
    evidence         text        NOT NULL,
    source           text        NOT NULL,
    first_position   bigint      NOT NULL,               -- the list's order: unique and never changed
    last_position    bigint      NOT NULL,
    requested_at     timestamptz,                        -- asked for, or proposed; NULL: heard of
    updated_at       timestamptz NOT NULL,
    PRIMARY KEY (customer_id, billing_period, no)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX refunds_in_order ON refunds (first_position);
CREATE INDEX refunds_of_charge ON refunds (charge_id);

-- +goose Down
DROP TABLE refunds;
ALTER TABLE bills DROP COLUMN money_back, DROP COLUMN refunded_minor, DROP COLUMN disputed;
DROP TABLE refund_records;
