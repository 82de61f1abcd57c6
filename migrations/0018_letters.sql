-- +goose Up

-- What became of a letter beside its status: that there was nothing left to do.
ALTER TABLE dead_letters ADD COLUMN note text NOT NULL DEFAULT '';

-- Each time that a letter was put aside, tried again or decided against. Kept
-- for ever.
CREATE TABLE dead_letter_history (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    processor text        NOT NULL,
    position  bigint      NOT NULL,
    outcome   text        NOT NULL CHECK (outcome IN ('parked', 'behind', 'retried', 'failed', 'skipped')),
    actor     text        NOT NULL DEFAULT '',
    detail    text        NOT NULL DEFAULT '',  -- the error, the operator's reason, or the note
    at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dead_letter_history_of ON dead_letter_history (processor, position, id);

-- +goose Down
DROP TABLE dead_letter_history;
ALTER TABLE dead_letters DROP COLUMN note;
