-- +goose Up

-- What Stripe has taken for the bills of a period, by the lists that a
-- comparison has read: {"usd": 123456}, in minor units.
ALTER TABLE reconciliations ADD COLUMN taken json;

-- +goose Down
ALTER TABLE reconciliations DROP COLUMN taken;
