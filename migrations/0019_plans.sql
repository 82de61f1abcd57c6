-- +goose Up

-- Which replays of effectful processors were signed off: who, why, and what the
-- plan said. The commands themselves follow from the log.
CREATE TABLE saga_plans (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    processor     text        NOT NULL,
    from_position bigint      NOT NULL,
    to_position   bigint      NOT NULL, -- the newest there was
    commands      bigint      NOT NULL,
    existing      bigint      NOT NULL,
    new           bigint      NOT NULL,
    digest        text        NOT NULL,
    actor         text        NOT NULL,
    reason        text        NOT NULL,
    applied_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- +goose Down
DROP TABLE saga_plans;
