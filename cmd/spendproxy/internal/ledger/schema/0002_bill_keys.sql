-- +goose Up

-- The keys under which a bill's first attempts may be charged, as domain.ChargeKey
-- makes them: their first 16 characters. Every idempotency key of a bill begins
-- with one of them, so that a key in another program's hands is known for a bill's.
-- +goose StatementBegin
CREATE FUNCTION spendproxy.charge_keys(customer text, period text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY[
        left(encode(sha256((customer || ':' || period || ':axon-billing')::bytea), 'hex'), 16),
        left(encode(sha256((customer || ':' || period || ':axon-billing:2')::bytea), 'hex'), 16),
        left(encode(sha256((customer || ':' || period || ':axon-billing:3')::bytea), 'hex'), 16),
        left(encode(sha256((customer || ':' || period || ':axon-billing:4')::bytea), 'hex'), 16),
        left(encode(sha256((customer || ':' || period || ':axon-billing:5')::bytea), 'hex'), 16),
        left(encode(sha256((customer || ':' || period || ':axon-billing:6')::bytea), 'hex'), 16),
        left(encode(sha256((customer || ':' || period || ':axon-billing:7')::bytea), 'hex'), 16),
        left(encode(sha256((customer || ':' || period || ':axon-billing:8')::bytea), 'hex'), 16)]
$$;
-- +goose StatementEnd
CREATE INDEX obligations_by_key ON spendproxy.obligations USING gin (spendproxy.charge_keys(customer_id, billing_period));

-- +goose Down
DROP INDEX spendproxy.obligations_by_key;
DROP FUNCTION spendproxy.charge_keys(text, text);
