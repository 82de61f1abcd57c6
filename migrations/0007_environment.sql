-- +goose Up

-- Where this database belongs and what it was when it was last looked at: one
-- row, written by the first start. A service that finds something else here
-- collects nothing until an operator adopts it.
CREATE TABLE environment (
    one               boolean     PRIMARY KEY DEFAULT true CHECK (one), -- there is no second row
    name              text        NOT NULL, -- BILLING_ENVIRONMENT
    stripe_account    text        NOT NULL, -- '' until known
    system_identifier text        NOT NULL, -- of the server that the data lie on
    database_oid      bigint      NOT NULL, -- of this database there
    timeline          bigint      NOT NULL, -- of that server; rises when a standby is promoted or a backup is recovered
    epoch             bigint      NOT NULL, -- drawn at random when the database turned out to be another one
    former_epoch      bigint      NOT NULL DEFAULT 0,
    paused            boolean     NOT NULL DEFAULT false, -- nothing is collected until it is adopted
    reason            text        NOT NULL DEFAULT '',    -- why it is paused
    adopted_at        timestamptz,
    adopted_by        text,
    adopted_reason    text,
    first_started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- When a decline is to be read again, on business time: what was declined may
-- turn out to have been executed after all. NULL: it has been, or is not one.
ALTER TABLE billing_records ADD COLUMN read_again_at timestamptz;
CREATE INDEX billing_records_read_again ON billing_records (read_again_at) WHERE state = 'declined' AND read_again_at IS NOT NULL;

-- What the domain knows of a bill that may have been settled before a restore.
ALTER TABLE bills
    ADD COLUMN perhaps_settled boolean NOT NULL DEFAULT false,
    ADD COLUMN released        boolean NOT NULL DEFAULT false;

ALTER TABLE run_bills ADD COLUMN perhaps_settled boolean NOT NULL DEFAULT false;
ALTER TABLE charges ADD COLUMN perhaps_settled boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE charges DROP COLUMN perhaps_settled;
ALTER TABLE run_bills DROP COLUMN perhaps_settled;
ALTER TABLE bills DROP COLUMN perhaps_settled, DROP COLUMN released;
DROP INDEX billing_records_read_again;
ALTER TABLE billing_records DROP COLUMN read_again_at;
DROP TABLE environment;
