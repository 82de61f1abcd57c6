-- +goose Up

-- A refund that Stripe holds under our name, and that is not the one that was
-- asked for, rests until an operator has spoken.
ALTER TABLE refund_records DROP CONSTRAINT refund_records_state_check;
ALTER TABLE refund_records ADD CONSTRAINT refund_records_state_check
    CHECK (state IN ('requested', 'sending', 'unknown', 'pending', 'succeeded', 'failed', 'cancelled', 'refused', 'needs_review'));

-- Such a refund is a finding, and so is a charge that nobody asked for beside one
-- that paid a bill of the same customer and amount on the same day.
ALTER TABLE reconcile_findings DROP CONSTRAINT reconcile_findings_kind_check;
ALTER TABLE reconcile_findings ADD CONSTRAINT reconcile_findings_kind_check
    CHECK (kind IN ('missing', 'orphan', 'unrecorded', 'mismatch', 'duplicate', 'possible_duplicate', 'row', 'refund'));

-- Findings that an operator has looked into and left as they are. What is found
-- of the same object again is shown as dismissed. Never deleted.
CREATE TABLE reconcile_dismissals (
    kind         text        NOT NULL,
    subject      text        NOT NULL,
    reason       text        NOT NULL,
    dismissed_by text        NOT NULL,
    dismissed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, subject)
);

ALTER TABLE bills ADD COLUMN reviewed boolean NOT NULL DEFAULT false; -- the evidence of the attempt has contradicted itself, or run out

-- +goose Down
ALTER TABLE bills DROP COLUMN reviewed;
DROP TABLE reconcile_dismissals;
DELETE FROM reconcile_findings WHERE kind IN ('possible_duplicate', 'refund');
ALTER TABLE reconcile_findings DROP CONSTRAINT reconcile_findings_kind_check;
ALTER TABLE reconcile_findings ADD CONSTRAINT reconcile_findings_kind_check
    CHECK (kind IN ('missing', 'orphan', 'unrecorded', 'mismatch', 'duplicate', 'row'));
UPDATE refund_records SET state = 'unknown' WHERE state = 'needs_review';
ALTER TABLE refund_records DROP CONSTRAINT refund_records_state_check;
ALTER TABLE refund_records ADD CONSTRAINT refund_records_state_check
    CHECK (state IN ('requested', 'sending', 'unknown', 'pending', 'succeeded', 'failed', 'cancelled', 'refused'));
