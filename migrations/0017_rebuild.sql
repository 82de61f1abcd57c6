-- +goose Up

-- Read models are folded anew beside the live ones, into tables of the same
-- names and shapes that are made when they are needed.
CREATE SCHEMA rebuild;        -- a rebuild under way; it outlives whoever was at it
CREATE SCHEMA rebuild_trial;  -- of a dry run
CREATE SCHEMA rebuild_former; -- the rows that the last switch replaced

-- How far the tables of such a schema are folded, per partition. They hold the
-- partitions that have a row here and no others.
CREATE TABLE rebuild_tokens (
    side       text     NOT NULL, -- the schema
    projection text     NOT NULL,
    partition  smallint NOT NULL CHECK (partition BETWEEN 0 AND 63),
    position   bigint   NOT NULL,
    PRIMARY KEY (side, projection, partition)
) WITH (fillfactor = 50);

-- Who rebuilt a read model or took that back, when, why, and what it changed.
CREATE TABLE rebuilds (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    projection   text        NOT NULL,
    action       text        NOT NULL CHECK (action IN ('rebuild', 'rollback')),
    partitions   smallint[]  NOT NULL,
    actor        text        NOT NULL,
    reason       text        NOT NULL,
    begun_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    switched_at  timestamptz,          -- NULL: under way, or given up
    given_up_at  timestamptz,          -- another was begun in its place
    positions    bigint[],             -- of partitions, at the switch
    only_former  bigint,               -- rows
    only_rebuilt bigint,
    different    bigint
);
CREATE UNIQUE INDEX rebuilds_under_way ON rebuilds (projection) WHERE switched_at IS NULL AND given_up_at IS NULL;

-- +goose Down
DROP TABLE rebuilds;
DROP TABLE rebuild_tokens;
DROP SCHEMA rebuild_former CASCADE;
DROP SCHEMA rebuild_trial CASCADE;
DROP SCHEMA rebuild CASCADE;
