-- +goose Up

-- A run: everything that falls due under one period label. A row is made by the
-- first fact about the run or by the first bill that the proxy is told of; none
-- is a run that is not paused.
CREATE TABLE billing_runs (
    billing_period    text        PRIMARY KEY,
    turn              integer     NOT NULL DEFAULT 0,     -- how often it was resumed
    paused            boolean     NOT NULL DEFAULT false, -- nothing new is collected
    reason            text        NOT NULL DEFAULT '',    -- of the last pause
    refusal           json,                               -- of the proxy, if that is why
    paused_by         text        NOT NULL DEFAULT '',
    paused_at         timestamptz,                        -- business time
    last_position     bigint      NOT NULL DEFAULT 0,     -- newest fact about the run
    vault_key         text,                               -- public id of the run's key at the proxy; NULL: none yet
    expires_at        timestamptz,                        -- of that key, business time
    finding           text,                               -- what the proxy refuses of the manifest; NULL: nothing
    registering_until timestamptz,                        -- lease of the registrar: the database's clock
    updated_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What a run is expected to take, from subscriptions: each active one has an
-- entry for its next period. A due fixes its entry; so does a charge that was
-- asked for, with or without a due.
CREATE TABLE run_manifest (
    billing_period     text     NOT NULL,
    customer_id        text     NOT NULL,
    amount_minor       bigint   NOT NULL CHECK (amount_minor > 0),
    currency           text     NOT NULL,
    stripe_customer_id text     NOT NULL,
    fixed              boolean  NOT NULL,               -- it never changes again
    withdrawn          boolean  NOT NULL DEFAULT false, -- nothing is expected any more
    version            bigint   NOT NULL,               -- position of the fact that set it
    registered         boolean  NOT NULL DEFAULT false, -- the proxy lets this bill pass at this amount
    pending            boolean  NOT NULL DEFAULT true,  -- the proxy is to be told
    refused            text,                            -- why the proxy does not take it
    PRIMARY KEY (billing_period, customer_id)
) WITH (fillfactor = 70);
CREATE INDEX run_manifest_pending ON run_manifest (billing_period) WHERE pending;
CREATE INDEX run_manifest_refused ON run_manifest (billing_period) WHERE refused IS NOT NULL;

-- What each customer will owe next, folded from their facts.
CREATE TABLE run_subscriptions (
    customer_id        text   PRIMARY KEY,
    stripe_customer_id text   NOT NULL,
    subscription       json   NOT NULL,
    next_period        text   NOT NULL, -- '' = none
    open_period        text   NOT NULL, -- whose entry is not fixed yet; '' = none
    last_position      bigint NOT NULL  -- what is not newer is skipped
) WITH (fillfactor = 70);

-- What is claimed: bills that are to begin, by run, since a run may be paused;
-- and bills under way, which are finished whatever becomes of their run.
DROP INDEX billing_records_claimable;
CREATE INDEX billing_records_to_begin ON billing_records
    (billing_period, (coalesce(greatest(lease_until, next_try_at), '-infinity'::timestamptz)))
    WHERE state IN ('reserved', 'held');
CREATE INDEX billing_records_under_way ON billing_records
    ((coalesce(greatest(lease_until, next_try_at), '-infinity'::timestamptz)))
    WHERE state IN ('sending', 'unknown', 'closing', 'action_required');
CREATE INDEX billing_records_held ON billing_records (billing_period) WHERE state = 'held';

-- +goose Down
DROP INDEX billing_records_held;
DROP INDEX billing_records_under_way;
DROP INDEX billing_records_to_begin;
CREATE INDEX billing_records_claimable ON billing_records
    ((coalesce(greatest(lease_until, next_try_at), '-infinity'::timestamptz)))
    WHERE state IN ('reserved', 'sending', 'unknown', 'held', 'closing', 'action_required');
DROP TABLE run_subscriptions;
DROP TABLE run_manifest;
DROP TABLE billing_runs;
