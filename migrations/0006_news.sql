-- +goose Up

-- What Stripe tells: each event is a row here before it is answered, and is
-- applied from here. An event that was read from Stripe's list, because no
-- delivery had told what it says, has no payload. Never deleted.
CREATE TABLE webhook_inbox (
    event_id        text        PRIMARY KEY,
    type            text        NOT NULL,
    object_id       text        NOT NULL,
    says            text        NOT NULL DEFAULT '',  -- the state of the object that it tells; '' = nothing that this version acts on
    api_version     text        NOT NULL,
    live            boolean     NOT NULL,
    created         timestamptz NOT NULL,             -- Stripe's time
    received_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    idempotency_key text,                             -- of the request that caused it
    source          text        NOT NULL CHECK (source IN ('webhook', 'events')),
    payload         json,                             -- as delivered
    news            json        NOT NULL,             -- reduced to what is acted on
    intent_id       text,
    charge_id       text,
    customer_id     text,                             -- of the bill, once it is known which
    billing_period  text,
    state           text        NOT NULL CHECK (state IN ('received', 'applied', 'unknown_kind', 'deferred', 'failed')),
    attempts        integer     NOT NULL DEFAULT 0,
    next_try_at     timestamptz NOT NULL DEFAULT clock_timestamp(), -- the database's clock
    applied_at      timestamptz,
    note            text
);
CREATE INDEX webhook_inbox_due ON webhook_inbox (next_try_at) WHERE state IN ('received', 'deferred', 'failed');
CREATE INDEX webhook_inbox_bill ON webhook_inbox (customer_id, billing_period) WHERE customer_id IS NOT NULL;
CREATE INDEX webhook_inbox_object ON webhook_inbox (object_id, type);
CREATE INDEX webhook_inbox_charge ON webhook_inbox (charge_id) WHERE charge_id IS NOT NULL;
CREATE INDEX webhook_inbox_intent ON webhook_inbox (intent_id) WHERE intent_id IS NOT NULL;

-- How far Stripe's list of events has been read, in Stripe's time.
CREATE TABLE news_catch_up (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    through    timestamptz NOT NULL,
    event_id   text        NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Comparisons of the three books: log, billing_records and Stripe.
CREATE TABLE reconciliations (
    id           bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    scope        text        NOT NULL,                -- 'period 2026-11', 'since 2026-11-01T00:00:00Z' or 'everything'
    requested_by text        NOT NULL,
    state        text        NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed')),
    phase        text        NOT NULL DEFAULT '',
    events       bigint      NOT NULL DEFAULT 0,      -- read from Stripe's list of events
    objects      bigint      NOT NULL DEFAULT 0,      -- read from Stripe's lists of intents and charges
    charges      bigint      NOT NULL DEFAULT 0,      -- successes among them, in scope
    bills        bigint      NOT NULL DEFAULT 0,      -- rows compared with the log
    expected     bigint      NOT NULL DEFAULT 0,      -- rows in scope when it began
    error        text,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at   timestamptz,
    ended_at     timestamptz
);
-- Who asks for what is already asked for joins it.
CREATE UNIQUE INDEX reconciliations_open ON reconciliations (scope) WHERE state IN ('queued', 'running');

CREATE TABLE reconcile_findings (
    reconciliation_id bigint      NOT NULL REFERENCES reconciliations,
    kind              text        NOT NULL CHECK (kind IN ('missing', 'orphan', 'unrecorded', 'mismatch', 'duplicate', 'row')),
    subject           text        NOT NULL,           -- the charge; of a row, its bill
    customer_id       text        NOT NULL DEFAULT '',
    billing_period    text        NOT NULL DEFAULT '',
    charge_id         text        NOT NULL DEFAULT '',
    intent_id         text        NOT NULL DEFAULT '',
    amount            bigint      NOT NULL DEFAULT 0, -- at Stripe
    currency          text        NOT NULL DEFAULT '',
    detail            text        NOT NULL,
    repaired          boolean     NOT NULL,
    action            text        NOT NULL,           -- what was done, or what is proposed
    found_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (reconciliation_id, kind, subject)
);

-- +goose Down
DROP TABLE reconcile_findings;
DROP TABLE reconciliations;
DROP TABLE news_catch_up;
DROP TABLE webhook_inbox;
