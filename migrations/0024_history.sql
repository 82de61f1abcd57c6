-- +goose Up

-- The last period that another system has billed; '' if no history was imported.
ALTER TABLE customers ADD COLUMN billed_through text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE customers DROP COLUMN billed_through;
