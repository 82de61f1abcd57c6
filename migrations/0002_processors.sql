-- +goose Up

-- How far each tracking processor has come, per partition. The row lock is the
-- claim: whoever holds it handles the partition, and the claim ends with the
-- transaction or the connection.
CREATE TABLE processor_tokens (
    processor       text        NOT NULL,
    partition       smallint    NOT NULL CHECK (partition BETWEEN 0 AND 63),
    position        bigint      NOT NULL DEFAULT 0,          -- the last position handled
    replay_until    bigint      NOT NULL DEFAULT 0,          -- events up to here are replays
    stop_at         bigint,                                  -- a bounded run ends here
    paused          boolean     NOT NULL DEFAULT false,
    attempts        integer     NOT NULL DEFAULT 0,          -- failures at failed_position
    failed_position bigint,
    not_before      timestamptz NOT NULL DEFAULT '-infinity',-- back-off, on the database's clock
    last_error      text,
    owner           text,                                    -- who moved it last
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (processor, partition)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Events that a processor could not handle, in sequence per customer: what
-- follows a parked event of the same customer waits behind it.
CREATE TABLE dead_letters (
    processor    text        NOT NULL,
    position     bigint      NOT NULL,
    partition    smallint    NOT NULL,
    sequence_key text        NOT NULL,
    event_id     uuid        NOT NULL,
    event_type   text        NOT NULL,
    attempts     integer     NOT NULL,
    error        text        NOT NULL,
    status       text        NOT NULL DEFAULT 'parked' CHECK (status IN ('parked', 'behind', 'retried', 'skipped')),
    reason       text,
    enqueued_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    resolved_at  timestamptz,
    PRIMARY KEY (processor, position)
);
CREATE INDEX dead_letters_open ON dead_letters (processor, sequence_key, position) WHERE status IN ('parked', 'behind');

-- Who reset or replayed a processor, when, and from where to where.
CREATE TABLE processor_runs (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    processor  text        NOT NULL,
    action     text        NOT NULL,
    actor      text        NOT NULL,
    from_position bigint,
    to_position   bigint,
    reason     text,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- +goose Down
DROP TABLE processor_runs;
DROP TABLE dead_letters;
DROP TABLE processor_tokens;
