-- +goose Up

-- Saga instances. State moves in the transaction that moves the processor's token.
CREATE TABLE sagas (
    saga          text        NOT NULL,
    id            text        NOT NULL,
    state         json        NOT NULL,
    step          text        NOT NULL,
    attempt       integer     NOT NULL DEFAULT 0,
    key           text,                 -- key of the last command it sent
    refusal       text,                 -- why that command was refused, if it was
    version       integer     NOT NULL,
    last_position bigint      NOT NULL, -- what is not newer is skipped
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (saga, id)
);

-- When the next period of each subscription falls due. Fed by the schedule
-- processor, advanced by the due scanner.
CREATE TABLE subscription_schedule (
    customer_id   text        PRIMARY KEY,
    partition     smallint    NOT NULL,
    next_period   text        NOT NULL,
    due_at        timestamptz NOT NULL, -- business time
    last_position bigint      NOT NULL
);
CREATE INDEX subscription_schedule_due ON subscription_schedule (due_at);

-- The pre-flight record: one row a bill, committed before any call to Stripe.
-- The log is the truth; this row is what the collector works from. Never deleted.
CREATE TABLE billing_records (
    customer_id        text        NOT NULL,
    billing_period     text        NOT NULL,
    partition          smallint    NOT NULL,
    attempt            integer     NOT NULL CHECK (attempt > 0),
    start              integer     NOT NULL DEFAULT 0,      -- starts of this attempt
    key                text        NOT NULL,                -- charge key of this attempt
    amount             bigint      NOT NULL CHECK (amount > 0),
    currency           text        NOT NULL,
    stripe_customer_id text        NOT NULL,
    payment_method     text        NOT NULL,
    params             json        NOT NULL,                -- every request parameter, frozen
    state              text        NOT NULL CHECK (state IN ('reserved', 'sending', 'succeeded', 'declined', 'action_required',
                                     'held', 'unknown', 'rejected', 'waiting', 'closing', 'void', 'needs_review')),
    intent_id          text,                                -- write-once per intent_no
    intent_no          integer     NOT NULL DEFAULT 1,
    latest_charge      text,                                -- before this attempt's confirm; '' = none, NULL = not yet known
    create_again       integer     NOT NULL DEFAULT 0,      -- creates that were answered by a stored 500
    again              integer     NOT NULL DEFAULT 0,      -- re-confirms after a quiet period
    lease_until        timestamptz,                         -- lease time: the database's clock
    fence              bigint      NOT NULL DEFAULT 0,      -- never reused
    epoch              bigint      NOT NULL DEFAULT 0,      -- part of the fence; redrawn by a forced look
    first_sent_at      timestamptz,                         -- business time
    last_sent_at       timestamptz,                         -- business time
    last_sent_wall     timestamptz,                         -- the database's clock
    quiet_seconds      integer     NOT NULL DEFAULT 0,      -- how long an unknown rests before another key may be used
    next_try_at        timestamptz,                         -- back-off, the database's clock
    tries              integer     NOT NULL DEFAULT 0,      -- consecutive tries without a decision
    outcome            json,
    last_position      bigint      NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (customer_id, billing_period)
) WITH (fillfactor = 70);
CREATE INDEX billing_records_claimable ON billing_records
    ((coalesce(greatest(lease_until, next_try_at), '-infinity'::timestamptz)))
    WHERE state IN ('reserved', 'sending', 'unknown', 'held', 'closing', 'action_required');
CREATE INDEX billing_records_intent ON billing_records (intent_id) WHERE intent_id IS NOT NULL;

-- The look: how far Stripe's own lists have been read, in Stripe's time.
CREATE TABLE looks (
    resource      text        PRIMARY KEY CHECK (resource IN ('payment_intents', 'charges')),
    swept_through timestamptz,
    cursor        text,
    epoch         bigint      NOT NULL DEFAULT 0,
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- +goose Down
DROP TABLE looks;
DROP TABLE billing_records;
DROP TABLE subscription_schedule;
DROP TABLE sagas;
