-- +goose Up

-- What decides when a customer's next period falls due, beside what was there.
ALTER TABLE customers
    ADD COLUMN schedules json NOT NULL DEFAULT '[]', -- later anchors and zones: [{"from": "2026-12", "anchor_day": 15}, …]
    ADD COLUMN pauses    json NOT NULL DEFAULT '[]'; -- [{"from": "2026-11-03T10:00:00Z", "until": …}, …]

-- How fast a run goes: what was paid of it lately.
CREATE INDEX bills_paid ON bills (billing_period, paid_at) WHERE paid_at IS NOT NULL;

-- +goose Down
DROP INDEX bills_paid;
ALTER TABLE customers DROP COLUMN schedules, DROP COLUMN pauses;
