-- +goose Up

-- Read models. Every row here is a function of the log: emptied and folded
-- again they come out the same, byte for byte. Each table is written by the
-- processor of its name alone, in the transaction that moves its token.
--
-- A row belongs to one partition, so that pages of different partitions never
-- meet on a row; totals are kept per partition and added up when read. Texts
-- are '' and times NULL where there is nothing to say. Keys sort bytewise
-- (COLLATE "C"), so that paging does not depend on the server's locale.
-- last_position is the newest fact folded in; what is not newer is skipped.

-- One row a customer.
CREATE TABLE customers (
    customer_id        text        COLLATE "C" PRIMARY KEY,
    partition          smallint    NOT NULL,
    registered_at      timestamptz,
    stripe_customer_id text        NOT NULL,
    payment_method_id  text        NOT NULL,               -- of attempts yet to be requested
    status             text        NOT NULL CHECK (status IN ('', 'active', 'paused', 'cancelled')), -- '': never subscribed
    amount_minor       bigint      NOT NULL,               -- as activated
    currency           text        NOT NULL,
    changes            json        NOT NULL,               -- later amounts: [{"from": "2026-12", "amount_minor": 700}, …]
    cadence            text        NOT NULL,
    anchor_day         integer     NOT NULL,
    time_zone          text        NOT NULL,
    starts_on          text        NOT NULL,               -- local date
    end_mode           text        NOT NULL,               -- how it was cancelled
    ended_at           timestamptz,                        -- and when, in business time
    next_period        text        NOT NULL,               -- first period not yet declared due
    last_period        text        NOT NULL,               -- newest period declared due
    status_at          timestamptz,                        -- recorded_at of the status
    reason             text        NOT NULL,               -- why it is paused or cancelled
    first_position     bigint      NOT NULL,
    last_position      bigint      NOT NULL,
    updated_at         timestamptz NOT NULL                -- recorded_at of the newest fact
) WITH (fillfactor = 80);

-- One row a customer and period: domain.Bill, and what a reader wants beside it.
CREATE TABLE bills (
    customer_id        text        COLLATE "C" NOT NULL,
    billing_period     text        COLLATE "C" NOT NULL,
    partition          smallint    NOT NULL,
    begins             date        NOT NULL,               -- first day of the period: labels do not sort by time
    status             text        NOT NULL,
    amount_minor       bigint      NOT NULL,               -- frozen when due or requested
    currency           text        NOT NULL,
    has_due            boolean     NOT NULL,
    due_at             timestamptz,
    attempt            integer     NOT NULL,
    starts             integer     NOT NULL,               -- of this attempt
    key                text        NOT NULL,               -- charge key of this attempt
    stripe_customer_id text        NOT NULL,
    payment_method_id  text        NOT NULL,
    intent_id          text        NOT NULL,
    intent_no          integer     NOT NULL,
    charge_id          text        NOT NULL,               -- the one that paid
    decline_class      text        NOT NULL,
    closing            text        NOT NULL,
    reference          text        NOT NULL,
    closing_reason     text        NOT NULL,
    unresolved         boolean     NOT NULL,
    cancelled          boolean     NOT NULL,
    code               text        NOT NULL,               -- of the last decline
    decline_code       text        NOT NULL,
    reason             text        NOT NULL,               -- why the status is what it is
    evidence           text        NOT NULL,
    source             text        NOT NULL,               -- where the news of the payment came from
    recovered          boolean     NOT NULL,
    taken_minor        bigint      NOT NULL,               -- what Stripe really took
    taken_currency     text        NOT NULL,
    surprises          integer     NOT NULL,
    surprise           text        NOT NULL,               -- the last one
    declared_at        timestamptz,
    requested_at       timestamptz,                        -- this attempt
    started_at         timestamptz,                        -- the last start
    paid_at            timestamptz,
    paid_position      bigint      NOT NULL,
    first_position     bigint      NOT NULL,
    last_position      bigint      NOT NULL,
    updated_at         timestamptz NOT NULL,
    PRIMARY KEY (customer_id, billing_period)
) WITH (fillfactor = 70);

-- One row an attempt. Attempt 0 holds what is known before any was requested.
CREATE TABLE charges (
    customer_id        text        COLLATE "C" NOT NULL,
    billing_period     text        COLLATE "C" NOT NULL,
    attempt            integer     NOT NULL,
    partition          smallint    NOT NULL,
    status             text        NOT NULL,
    amount_minor       bigint      NOT NULL,
    currency           text        NOT NULL,
    key                text        NOT NULL,
    starts             integer     NOT NULL,
    payment_method_id  text        NOT NULL,
    intent_id          text        NOT NULL,
    intent_no          integer     NOT NULL,
    charge_id          text        NOT NULL,               -- that paid or was declined
    code               text        NOT NULL,
    decline_code       text        NOT NULL,
    decline_class      text        NOT NULL,
    reason             text        NOT NULL,
    evidence           text        NOT NULL,
    unresolved         boolean     NOT NULL,
    requested_at       timestamptz,
    started_at         timestamptz,                        -- the last start
    ended_at           timestamptz,                        -- paid, declined, rejected or closed
    first_position     bigint      NOT NULL,               -- the list's order: unique and never changed
    last_position      bigint      NOT NULL,
    updated_at         timestamptz NOT NULL,
    PRIMARY KEY (customer_id, billing_period, attempt)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX charges_in_order ON charges (first_position);
CREATE INDEX charges_of_period ON charges (billing_period, first_position);
CREATE INDEX charges_not_paid ON charges (status, first_position) WHERE status <> 'paid';

-- What of each bill its run's totals contain.
CREATE TABLE run_bills (
    customer_id        text        COLLATE "C" NOT NULL,
    billing_period     text        COLLATE "C" NOT NULL,
    partition          smallint    NOT NULL,
    status             text        NOT NULL,
    unresolved         boolean     NOT NULL,
    amount_minor       bigint      NOT NULL,
    currency           text        NOT NULL,
    taken_minor        bigint      NOT NULL,
    taken_currency     text        NOT NULL,
    last_position      bigint      NOT NULL,
    PRIMARY KEY (customer_id, billing_period)
) WITH (fillfactor = 70);

-- Totals of each run (period label), per partition; rows of zeros are removed.
CREATE TABLE run_totals (
    billing_period     text        COLLATE "C" NOT NULL,
    currency           text        COLLATE "C" NOT NULL,
    status             text        COLLATE "C" NOT NULL,
    partition          smallint    NOT NULL,
    begins             date        NOT NULL,
    bills              bigint      NOT NULL,
    amount_minor       bigint      NOT NULL,               -- frozen amounts of these bills
    taken_minor        bigint      NOT NULL,               -- what Stripe took for them
    PRIMARY KEY (billing_period, currency, status, partition)
) WITH (fillfactor = 70);

-- Which bills the revenue contains.
CREATE TABLE revenue_bills (
    customer_id        text        COLLATE "C" NOT NULL,
    billing_period     text        COLLATE "C" NOT NULL,
    partition          smallint    NOT NULL,
    month              date        NOT NULL,
    currency           text        NOT NULL,
    taken_minor        bigint      NOT NULL,
    position           bigint      NOT NULL,
    PRIMARY KEY (customer_id, billing_period)
);

-- Revenue by the month in which the billing period begins, per partition.
CREATE TABLE revenue (
    month              date        NOT NULL,
    currency           text        COLLATE "C" NOT NULL,
    partition          smallint    NOT NULL,
    bills              bigint      NOT NULL,
    taken_minor        bigint      NOT NULL,
    PRIMARY KEY (month, currency, partition)
) WITH (fillfactor = 70);

-- +goose Down
DROP TABLE revenue;
DROP TABLE revenue_bills;
DROP TABLE run_totals;
DROP TABLE run_bills;
DROP TABLE charges;
DROP TABLE bills;
DROP TABLE customers;
