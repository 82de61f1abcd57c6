-- +goose Up

-- The log. One ordinary table; every fact of the business is a row here and
-- nowhere else first. A row is never changed and never removed.
CREATE SEQUENCE events_position_seq AS bigint MINVALUE 1 CACHE 1;

CREATE TABLE events (
    partition      smallint    NOT NULL CHECK (partition BETWEEN 0 AND 63), -- hash of the customer id, computed in Go
    position       bigint      NOT NULL CHECK (position > 0),               -- place in the log; drawn by the trigger below
    event_id       uuid        NOT NULL DEFAULT gen_random_uuid(),
    stream_id      text        NOT NULL,
    stream_version integer     NOT NULL CHECK (stream_version > 0),
    event_type     text        NOT NULL,                                    -- contract name, e.g. customer.billed.v1
    schema_version smallint    NOT NULL DEFAULT 1,
    sequence_key   text        NOT NULL,                                    -- the customer: what must stay in order
    payload        json        NOT NULL,                                    -- json, not jsonb: the exact bytes, read twice as fast
    metadata       json        NOT NULL DEFAULT '{}',                       -- correlation, causation, actor
    command_key    text,                                                    -- the command that made it
    digest         bytea,                                                   -- hash over the predecessor's digest and these bytes
    recorded_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (partition, position),
    CONSTRAINT events_stream_version UNIQUE (stream_id, stream_version),
    CONSTRAINT events_position UNIQUE (position),
    CONSTRAINT events_event_id UNIQUE (event_id)
);

REVOKE UPDATE, DELETE, TRUNCATE ON events FROM PUBLIC;

-- Positions are drawn while the partition's lock is held, and the lock is held
-- until commit. So within a partition the order of positions is the order of
-- commits, and a reader that has seen position n is never shown a smaller one
-- later. A row that brings its position (a restore) keeps it.
-- +goose StatementBegin
CREATE FUNCTION events_draw_position() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.position IS NULL THEN
        PERFORM pg_advisory_xact_lock(7310, NEW.partition);
        NEW.position := nextval('events_position_seq');
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER events_draw_position BEFORE INSERT ON events
    FOR EACH ROW EXECUTE FUNCTION events_draw_position();

-- Every command that was decided, by its key. Written with its facts; never pruned.
CREATE TABLE command_keys (
    key           text        PRIMARY KEY CHECK (length(key) BETWEEN 1 AND 255),
    command       text        NOT NULL,
    fingerprint   bytea       NOT NULL, -- of what the caller meant
    stream_id     text        NOT NULL,
    first_version integer     NOT NULL, -- first_version > last_version: decided, and nothing had to happen
    last_version  integer     NOT NULL,
    receipt       json,                 -- what the receipt says beyond the facts themselves
    recorded_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Idempotency-Key headers of HTTP callers, per actor. Never part of a charge key.
CREATE TABLE request_keys (
    actor       text        NOT NULL,
    key         text        NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    command     text        NOT NULL,
    body_digest bytea       NOT NULL,
    command_key text        NOT NULL, -- where the receipt is found
    receipt     json,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (actor, key)
);

-- +goose Down
DROP TABLE request_keys;
DROP TABLE command_keys;
DROP TABLE events;
DROP FUNCTION events_draw_position;
DROP SEQUENCE events_position_seq;
