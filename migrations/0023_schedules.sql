-- +goose Up

-- What decides when a customer's next period falls due, beside what was there.
ALTER TABLE customers
    ADD COLUMN schedules json NOT NULL DEFAULT '[]', -- later anchors and zones: [{"from": "2026-12", "anchor_day": 15}, …]
    ADD COLUMN pauses    json NOT NULL DEFAULT '[]'; -- [{"from": "2026-11-03T10:00:00Z", "until": …}, …]

-- +goose Down
ALTER TABLE customers DROP COLUMN schedules, DROP COLUMN pauses;
