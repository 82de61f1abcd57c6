-- +goose Up

-- Processes that run processors, or died while they did: one that ends in order
-- takes its row with it. Alive is who holds the advisory lock of class 7313.
CREATE TABLE processor_boots (
    owner      text        PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What processes have begun to handle, after one of them has died. A mark before
-- its token was never ended.
CREATE TABLE processor_marks (
    processor      text     NOT NULL,
    partition      smallint NOT NULL CHECK (partition BETWEEN 0 AND 63),
    first_position bigint   NOT NULL,
    last_position  bigint   NOT NULL, -- of the page, or of the page that the first one was a part of
    owner          text,              -- who has it under way
    deaths         integer  NOT NULL DEFAULT 0,
    PRIMARY KEY (processor, partition)
);

-- +goose Down
DROP TABLE processor_marks;
DROP TABLE processor_boots;
