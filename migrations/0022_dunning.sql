-- +goose Up

-- Commands that are sent at a time, or as soon as may be. A row is deleted in
-- the transaction that sends its command. What is to be sent in its place, or
-- not at all, is found by the token: one row a token.
CREATE TABLE scheduled_commands (
    key            text        PRIMARY KEY, -- of the command
    token          text        NOT NULL,
    command        text        NOT NULL,
    customer_id    text        NOT NULL,
    billing_period text        NOT NULL,
    attempt        integer     NOT NULL,
    due_at         timestamptz NOT NULL,    -- business time
    causation      text        NOT NULL,    -- the event that it follows from
    correlation    text        NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX scheduled_commands_due ON scheduled_commands (due_at);
CREATE INDEX scheduled_commands_token ON scheduled_commands (token);

-- What was decided to follow a bill's declines: domain.Dunning; null: nothing.
ALTER TABLE bills ADD COLUMN dunning json NOT NULL DEFAULT 'null';

-- +goose Down
ALTER TABLE bills DROP COLUMN dunning;
DROP TABLE scheduled_commands;
