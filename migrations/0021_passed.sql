-- +goose Up

-- What tolerant processors passed over: events of a type or version that the
-- build they ran in did not know.
CREATE TABLE passed_events (
    processor      text     NOT NULL,
    partition      smallint NOT NULL CHECK (partition BETWEEN 0 AND 63),
    event_type     text     NOT NULL,
    schema_version smallint NOT NULL,
    events         bigint   NOT NULL, -- how many
    first_position bigint   NOT NULL,
    last_position  bigint   NOT NULL,
    PRIMARY KEY (processor, partition, event_type, schema_version)
);

-- +goose Down
DROP TABLE passed_events;
