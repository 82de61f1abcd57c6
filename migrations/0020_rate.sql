-- +goose Up

-- How many events a second a processor handles in a partition, averaged over
-- about ten seconds, as of rated_at. It is on the token because any replica may
-- be the one that moves it.
ALTER TABLE processor_tokens
    ADD COLUMN rate     double precision NOT NULL DEFAULT 0,
    ADD COLUMN rated_at timestamptz      NOT NULL DEFAULT clock_timestamp();

-- +goose Down
ALTER TABLE processor_tokens DROP COLUMN rate, DROP COLUMN rated_at;
