-- +goose Up

-- What decides when a customer's next period falls due, beside what was there.
ALTER TABLE customers
    ADD COLUMN schedules json NOT NULL DEFAULT '[]', -- later anchors and zones: [{"from": "2026-12", "anchor_day": 15}, …]
    ADD COLUMN pauses    json NOT NULL DEFAULT '[]'; -- [{"from": "2026-11-03T10:00:00Z", "until": …}, …]

-- The pauses of subscriptions that were paused before, as far as each row has
-- read the log.
UPDATE customers c SET pauses = p.pauses::json
FROM (
    SELECT sequence_key, '[' || string_agg('{"from":' || at || coalesce(',"until":' || until, '') || '}', ',' ORDER BY stream_version) || ']' AS pauses
    FROM (
        SELECT e.sequence_key, e.stream_version, e.event_type, (e.payload->'at')::text AS at,
            lead((e.payload->'at')::text) OVER (PARTITION BY e.stream_id ORDER BY e.stream_version) AS until
        FROM events e
        JOIN customers r ON r.customer_id = e.sequence_key AND e.position <= r.last_position
        WHERE e.event_type IN ('subscription.paused.v1', 'subscription.resumed.v1')
            AND e.stream_version > (SELECT max(a.stream_version) FROM events a
                WHERE a.stream_id = e.stream_id AND a.event_type = 'subscription.activated.v1' AND a.position <= r.last_position)
    ) AS turns
    WHERE event_type = 'subscription.paused.v1'
    GROUP BY sequence_key
) AS p
WHERE c.customer_id = p.sequence_key;

-- How fast a run goes: what was paid of it lately.
CREATE INDEX bills_paid ON bills (billing_period, paid_at) WHERE paid_at IS NOT NULL;

-- +goose Down
DROP INDEX bills_paid;
ALTER TABLE customers DROP COLUMN schedules, DROP COLUMN pauses;
