-- +goose Up

-- What was delivered before held the client secrets of intents.
UPDATE webhook_inbox SET payload = regexp_replace(payload::text, '[A-Za-z]+_[A-Za-z0-9]+_secret_[A-Za-z0-9]+', 'not kept', 'g')::json
WHERE payload::text LIKE '%\_secret\_%';
COMMENT ON COLUMN webhook_inbox.payload IS 'as delivered, but for the client secrets of intents';

-- +goose Down

COMMENT ON COLUMN webhook_inbox.payload IS NULL;
