-- +goose Up

-- Who may spend. A key's secrets are beside it; it lives as long as the books.
CREATE TABLE spendproxy.vault_keys (
    id             text        COLLATE "C" PRIMARY KEY,      -- the public part of its secrets
    label          text        NOT NULL,
    environment    text        NOT NULL,
    run            text        NOT NULL,                     -- '': not a run's
    rules          text[]      NOT NULL,
    mode           text        NOT NULL CHECK (mode IN ('open', 'report', 'enforce')),
    cap_window     text        NOT NULL CHECK (cap_window IN ('total', 'day')), -- never changed: books are kept by it
    manifest       boolean     NOT NULL,                     -- calls must be what a bill of its manifest needs
    count_cap      bigint      NOT NULL CHECK (count_cap >= 0), -- charges in a window, all currencies; 0: none
    expires_at     timestamptz,                              -- business time
    created_at     timestamptz NOT NULL,                     -- business time
    created_by     text        NOT NULL,
    revoked_at     timestamptz,
    revoked_by     text        NOT NULL DEFAULT '',
    revoked_reason text        NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX vault_keys_of_run ON spendproxy.vault_keys (environment, run) WHERE run <> '';
CREATE INDEX vault_keys_in_order ON spendproxy.vault_keys (created_at, id);

-- A secret is known by its hash alone.
CREATE TABLE spendproxy.secrets (
    vault_key  text        COLLATE "C" NOT NULL REFERENCES spendproxy.vault_keys,
    hash       bytea       NOT NULL CHECK (octet_length(hash) = 32), -- SHA-256
    last4      text        NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text        NOT NULL,
    retires_at timestamptz,                                  -- business time; NULL: with its key
    PRIMARY KEY (vault_key, hash)
);

-- What a vault key may spend in a currency, and what its manifest expects.
CREATE TABLE spendproxy.caps (
    vault_key      text    COLLATE "C" NOT NULL REFERENCES spendproxy.vault_keys,
    currency       text    COLLATE "C" NOT NULL,
    cap_minor      bigint  NOT NULL CHECK (cap_minor >= 0),     -- raises for a time come on top
    ceiling_minor  bigint  NOT NULL CHECK (ceiling_minor >= 0), -- of one charge; 0: none
    by_operator    boolean NOT NULL,                            -- it does not follow the manifest
    bills          bigint  NOT NULL DEFAULT 0 CHECK (bills >= 0),
    expected_minor bigint  NOT NULL DEFAULT 0 CHECK (expected_minor >= 0),
    PRIMARY KEY (vault_key, currency)
);

-- Every change of a vault key, with its reason. A raise for a time holds by its
-- row here, until it ends by itself or by a later word.
CREATE TABLE spendproxy.raises (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    vault_key  text        COLLATE "C" NOT NULL REFERENCES spendproxy.vault_keys,
    what       text        NOT NULL CHECK (what IN ('raise', 'manifest', 'extend', 'rotate', 'revoke')),
    currency   text        COLLATE "C" NOT NULL,             -- '': not about a cap
    from_minor bigint      NOT NULL,
    to_minor   bigint      NOT NULL,
    ends_at    timestamptz,                                  -- business time; NULL: for good
    ended_at   timestamptz,                                  -- by a later word
    reason     text        NOT NULL,
    made_by    text        NOT NULL,
    made_at    timestamptz NOT NULL                          -- business time
);
CREATE INDEX raises_of_key ON spendproxy.raises (vault_key, id);
CREATE INDEX raises_for_a_time ON spendproxy.raises (vault_key) WHERE what = 'raise' AND ends_at IS NOT NULL AND ended_at IS NULL;

-- What a vault key has promised and spent: the sums of its reservations, which
-- every decision reads.
CREATE TABLE spendproxy.books (
    vault_key   text   COLLATE "C" NOT NULL,
    currency    text   COLLATE "C" NOT NULL,
    day         text   COLLATE "C" NOT NULL,                 -- UTC day in which it was reserved, 2026-11-30; '': the total
    held_minor  bigint NOT NULL CHECK (held_minor >= 0),
    spent_minor bigint NOT NULL CHECK (spent_minor >= 0),
    charges     bigint NOT NULL CHECK (charges >= 0),        -- held or spent
    PRIMARY KEY (vault_key, currency, day)
) WITH (fillfactor = 50);

-- The manifests: bills that may be charged, over all vault keys.
CREATE TABLE spendproxy.obligations (
    customer_id     text    COLLATE "C" NOT NULL,
    billing_period  text    COLLATE "C" NOT NULL,
    vault_key       text    COLLATE "C" NOT NULL REFERENCES spendproxy.vault_keys,
    amount_minor    bigint  NOT NULL CHECK (amount_minor > 0),
    currency        text    COLLATE "C" NOT NULL,
    stripe_customer text    NOT NULL,                        -- '': any
    fixed           boolean NOT NULL,                        -- never changed again
    paid            text    NOT NULL DEFAULT '',             -- the intent or charge that took it, write-once
    PRIMARY KEY (customer_id, billing_period)
) WITH (fillfactor = 80);

-- What Stripe was seen to hold: intents, charges and refunds.
CREATE TABLE spendproxy.objects (
    id              text        COLLATE "C" PRIMARY KEY,
    intent          text        COLLATE "C" NOT NULL,        -- that a charge belongs to
    state           text        NOT NULL CHECK (state IN ('succeeded', 'unpaid', 'processing', 'action', 'cancelled', 'absent')),
    amount_minor    bigint      NOT NULL,
    currency        text        NOT NULL,
    received_minor  bigint      NOT NULL,
    customer_id     text        COLLATE "C" NOT NULL,        -- by its markers; '': none
    billing_period  text        COLLATE "C" NOT NULL,
    stripe_customer text        NOT NULL,
    latest_charge   text        NOT NULL,
    raw             bytea,                                   -- as Stripe wrote it, of what succeeded
    answer_key      text        NOT NULL,                    -- the key whose stored answer shows the same
    seen_at         timestamptz NOT NULL                     -- business time
) WITH (fillfactor = 80);
CREATE INDEX objects_of_bill ON spendproxy.objects (customer_id, billing_period) WHERE customer_id <> '';

-- Reservations. One intent has one, however many keys are sent for it; a charge
-- and a refund have one by the key that asks for them.
CREATE TABLE spendproxy.subjects (
    id             text        COLLATE "C" PRIMARY KEY,      -- pi_…, or key:… of an idempotency key
    refund         boolean     NOT NULL,
    vault_key      text        COLLATE "C" NOT NULL,
    day            text        NOT NULL,                     -- of the books
    amount_minor   bigint      NOT NULL CHECK (amount_minor > 0),
    currency       text        NOT NULL,
    state          text        NOT NULL CHECK (state IN ('reserved', 'held', 'settled', 'released')),
    settled_minor  bigint      NOT NULL,                     -- what was really taken
    settled_in     text        NOT NULL,                     -- its currency
    intent         text        COLLATE "C" NOT NULL,         -- '' until known
    object         text        COLLATE "C" NOT NULL,         -- charge or refund, '' until known
    customer_id    text        COLLATE "C" NOT NULL,         -- '': no bill
    billing_period text        COLLATE "C" NOT NULL,
    stripe_customer text       NOT NULL,
    sends          json        NOT NULL,                     -- those that are not proven to have executed nothing
    since          timestamptz NOT NULL,                     -- first of these sends; business time, as all here
    quiet_until    timestamptz NOT NULL,                     -- from then on a read that shows no payment is proof
    ask_at         timestamptz NOT NULL,                     -- from then on it is a doubt
    asked_at       timestamptz                               -- last handed out as a doubt
) WITH (fillfactor = 70);
CREATE INDEX subjects_of_intent ON spendproxy.subjects (intent) WHERE intent <> '' AND intent <> id;
CREATE INDEX subjects_of_object ON spendproxy.subjects (object) WHERE object <> '';
CREATE INDEX subjects_of_bill ON spendproxy.subjects (customer_id, billing_period) WHERE customer_id <> '';
CREATE INDEX subjects_in_doubt ON spendproxy.subjects (ask_at) WHERE state IN ('reserved', 'held');

-- Every idempotency key that was ever forwarded, and what it stood for.
CREATE TABLE spendproxy.keys (
    idempotency_key text        COLLATE "C" PRIMARY KEY,
    fingerprint     bytea       NOT NULL,
    vault_key       text        NOT NULL,                    -- that sent it first
    rule            text        NOT NULL,
    subject         text        COLLATE "C" NOT NULL,        -- '': it moves no money
    first_sent_at   timestamptz NOT NULL                     -- business time
);

-- What Stripe answered to a key that succeeded, byte for byte, for ever.
CREATE TABLE spendproxy.answers (
    idempotency_key text     COLLATE "C" PRIMARY KEY,
    status          smallint NOT NULL,
    content_type    text     NOT NULL,
    request_id      text     NOT NULL,
    body            bytea    NOT NULL
);

-- One row before a call and one after it; a call that is not made has the first
-- alone. Never updated, and never a secret in it.
CREATE TABLE spendproxy.audit (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    call            text        COLLATE "C" NOT NULL,
    phase           text        NOT NULL CHECK (phase IN ('before', 'after')),
    at              timestamptz NOT NULL,                    -- business time
    vault_key       text        COLLATE "C" NOT NULL,        -- '': nobody's
    method          text        NOT NULL,
    path            text        NOT NULL,
    rule            text        NOT NULL,
    verdict         text        NOT NULL CHECK (verdict IN ('allow', 'refuse', 'would_refuse')),
    code            text        NOT NULL,
    reason          text        NOT NULL,
    customer_id     text        COLLATE "C" NOT NULL,
    billing_period  text        COLLATE "C" NOT NULL,
    object          text        COLLATE "C" NOT NULL,        -- intent, charge or refund
    amount_minor    bigint      NOT NULL,
    currency        text        NOT NULL,
    idempotency_key text        COLLATE "C" NOT NULL,
    reservation     text        NOT NULL,
    status          smallint    NOT NULL,                    -- 0: no answer
    request_id      text        NOT NULL,                    -- Stripe's
    latency_ms      bigint      NOT NULL
);
CREATE INDEX audit_of_bill ON spendproxy.audit (customer_id, billing_period, id) WHERE customer_id <> '';
CREATE INDEX audit_of_vault_key ON spendproxy.audit (vault_key, id);
CREATE INDEX audit_of_key ON spendproxy.audit (idempotency_key, id) WHERE idempotency_key <> '';
CREATE INDEX audit_of_object ON spendproxy.audit (object, id) WHERE object <> '';
CREATE INDEX audit_refused ON spendproxy.audit (id) WHERE verdict <> 'allow';

-- +goose Down
DROP TABLE spendproxy.audit, spendproxy.answers, spendproxy.keys, spendproxy.subjects, spendproxy.objects, spendproxy.obligations,
    spendproxy.books, spendproxy.raises, spendproxy.caps, spendproxy.secrets, spendproxy.vault_keys;
