-- +goose Up

-- The last period that another system has billed; '' if no history was imported.
ALTER TABLE customers ADD COLUMN billed_through text NOT NULL DEFAULT '';

-- The charges of another system's bills, of which Stripe shows no markers of
-- ours: what a charge that is met there belongs to.
CREATE TABLE imported_charges (
    charge_id      text PRIMARY KEY,
    customer_id    text NOT NULL,
    billing_period text NOT NULL
);

-- +goose Down
DROP TABLE imported_charges;
ALTER TABLE customers DROP COLUMN billed_through;
