package projections

import (
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// RunClosing is the last closing of a run.
type RunClosing struct {
	At               time.Time `json:"at" doc:"Business time, UTC."`
	By               string    `json:"by" doc:"A token's name."`
	ReconciliationID int64     `json:"reconciliation_id" doc:"The comparison with Stripe that was relied on."`
	ReportSHA256     string    `json:"report_sha256" doc:"Of GET /v1/runs/{period}/report, byte for byte."`
	AsOf             string    `json:"as_of" doc:"The report's place in every partition, opaque."`
}

// RunStanding is a run as whoever wants to close it has to know it.
type RunStanding struct {
	Report domain.RunReport
	// Since is how many facts about the run's bills are younger than some moment.
	Since int64
	// FallingDue is how many subscriptions are still to fall due under the label,
	// with those that are late and have an earlier one before it.
	FallingDue int64
	// Parked is how many of the run's customers wait in the dead letters.
	Parked int64
}

// RunReport makes the report of a run out of the log: of the moment of its last
// closing or, if it was never closed, of now. The run's bills are written to
// list as CSV, unless that is nil. It reads the whole history of the run's
// customers, in a snapshot, and holds one of them in memory at a time.
//
// It returns ErrUnknownRun.
func (r Reads) RunReport(ctx context.Context, period string, list io.Writer) (report domain.RunReport, closing *RunClosing, err error) {
	p, err := parse("period", period, domain.ParsePeriod)
	if err != nil {
		return report, nil, err
	}
	err = r.snapshot(ctx, func(tx pgx.Tx) (err error) {
		if closing, err = closingOf(ctx, tx, p); err != nil {
			return err
		}
		if closing != nil {
			report, err = ReportRun(ctx, tx, r.store, p, closing.AsOf, list)
			return err
		}
		report, _, err = r.reportNow(ctx, tx, p, list, time.Time{})
		if err == nil && report.Bills == 0 {
			err = ErrUnknownRun
		}
		return err
	})
	return report, closing, wrap(err, "report on the run")
}

// RunStanding is how a run stands now; since counts what is younger, on the
// database's clock.
func (r Reads) RunStanding(ctx context.Context, p domain.Period, since time.Time) (s RunStanding, err error) {
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if s.Report, s.Since, err = r.reportNow(ctx, tx, p, nil, since); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			SELECT (SELECT count(*) FROM run_manifest WHERE billing_period <= $1 AND billing_period ~ $2 AND NOT withdrawn AND NOT fixed),
				(SELECT count(DISTINCT sequence_key) FROM dead_letters WHERE status IN ('parked', 'behind') AND (
					sequence_key IN (SELECT customer_id FROM billing_records WHERE billing_period = $1)
					OR sequence_key IN (SELECT customer_id FROM run_manifest WHERE billing_period = $1)))`, p.String(), labelsLike(p)).Scan(&s.FallingDue, &s.Parked)
	})
	return s, wrap(err, "read how the run stands")
}

// labelsLike matches the labels of p's cadence, among which order is that of time.
func labelsLike(p domain.Period) string {
	switch {
	case p.Fits(domain.Monthly):
		return `^\d{4}-\d\d$`
	case p.Fits(domain.Quarterly):
		return `^\d{4}-Q\d$`
	}
	return `^\d{4}$`
}

func (r Reads) reportNow(ctx context.Context, tx pgx.Tx, p domain.Period, list io.Writer, since time.Time) (domain.RunReport, int64, error) {
	end, err := endOfLog(ctx, tx)
	if err != nil {
		return domain.RunReport{}, 0, err
	}
	return reportRun(ctx, tx, r.store, p, end.Vector, list, since)
}

// ReportRun makes the report of a run as of a place in every partition, such as
// one that a closing names. With the same log it is the same to the byte.
func ReportRun(ctx context.Context, q eventstore.Querier, store *eventstore.Store, p domain.Period, asOf string, list io.Writer) (domain.RunReport, error) {
	report, _, err := reportRun(ctx, q, store, p, asOf, list, time.Time{})
	return report, err
}

func reportRun(ctx context.Context, q eventstore.Querier, store *eventstore.Store, p domain.Period, asOf string, list io.Writer, since time.Time) (report domain.RunReport, later int64, err error) {
	until, ok := parseVector(asOf)
	if !ok {
		return report, 0, fmt.Errorf("report on run %s: %q is not a place in every partition", p, asOf)
	}
	rows, err := q.Query(ctx, `
		SELECT stream_id, stream_version, event_type, schema_version, payload, digest, recorded_at FROM events
		WHERE stream_id IN (SELECT stream_id FROM events WHERE payload->>'billing_period' = $1 AND starts_with(stream_id, 'customer/'))
			AND position <= ($2::bigint[])[partition + 1]
		ORDER BY stream_id COLLATE "C", stream_version`, pgx.QueryExecModeCacheDescribe, p.String(), until[:])
	if err != nil {
		return report, 0, fmt.Errorf("report on run %s: %w", p, err)
	}
	defer rows.Close()
	b := newReportBuilder(p, asOf, list)
	for rows.Next() {
		var f eventstore.Recorded
		var stream string
		if err := rows.Scan(&stream, &f.Version, &f.Type, &f.SchemaVersion, (*[]byte)(&f.Payload), &f.Digest, &f.RecordedAt); err != nil {
			return report, 0, fmt.Errorf("report on run %s: %w", p, err)
		}
		f.Stream = domain.StreamID(stream)
		for _, f := range store.Codec().AppendDecoded(nil, f) {
			if f.Err != nil {
				return report, 0, fmt.Errorf("report on run %s: %s version %d: %w", p, f.Stream, f.Version, f.Err)
			}
			if err := b.add(f); err != nil {
				return report, 0, fmt.Errorf("report on run %s: %w", p, err)
			}
			if _, of, about := domain.BillOf(f.Event); about && of == p && !since.IsZero() && f.RecordedAt.After(since) {
				later++
			}
		}
	}
	if err := rows.Err(); err != nil {
		return report, 0, fmt.Errorf("report on run %s: %w", p, err)
	}
	report, err = b.end()
	if err != nil {
		return report, 0, fmt.Errorf("report on run %s: %w", p, err)
	}
	return report, later, nil
}

// reportBuilder folds streams, one after the other, into a report.
type reportBuilder struct {
	report   domain.RunReport
	stream   domain.StreamID
	customer domain.Customer
	facts    hash.Hash
	bills    hash.Hash
	lines    *csv.Writer
}

// billColumns head the list of a run's bills.
var billColumns = []string{"customer_id", "billing_period", "status", "currency", "amount_minor", "taken_minor", "refunded_minor", "attempts", "charge_id", "intent_id"}

func newReportBuilder(p domain.Period, asOf string, list io.Writer) *reportBuilder {
	b := &reportBuilder{facts: sha256.New(), bills: sha256.New()}
	b.report = domain.RunReport{BillingPeriod: p, AsOf: asOf, Statuses: []domain.RunReportStatus{}, Totals: []domain.RunReportTotal{}, Declines: []domain.RunReportDecline{}}
	to := io.Writer(b.bills)
	if list != nil {
		to = io.MultiWriter(b.bills, list)
	}
	b.lines = csv.NewWriter(to)
	_ = b.lines.Write(billColumns) // Error tells in the end
	return b
}

func (b *reportBuilder) add(f eventstore.Recorded) error {
	if f.Stream != b.stream {
		if err := b.bill(); err != nil {
			return err
		}
		b.stream, b.customer = f.Stream, domain.Customer{}
	}
	b.customer = b.customer.Evolve(f.Event)
	b.report.Facts++
	_, _ = b.facts.Write(f.Digest) // a hash takes everything
	if d, ok := f.Event.(domain.ChargeDeclined); ok && d.BillingPeriod == b.report.BillingPeriod {
		b.report.Decline(d)
	}
	return nil
}

// bill takes over the bill of the stream that has ended.
func (b *reportBuilder) bill() error {
	bill, known := b.customer.Bill(b.report.BillingPeriod)
	if b.stream == "" || !known {
		return nil
	}
	back := b.customer.MoneyBack(bill.Period)
	if err := b.report.Add(bill, back); err != nil {
		return err
	}
	var taken, refunded int64
	if bill.Status == domain.BillPaid {
		taken = back.Taken.Minor
	}
	for _, r := range back.Refunds {
		if r.State.Counts() {
			refunded += r.Amount.Minor
		}
	}
	minor := func(n int64) string { return strconv.FormatInt(n, 10) }
	return b.lines.Write([]string{string(b.customer.ID()), bill.Period.String(), string(bill.Status), string(bill.Amount.Currency), minor(bill.Amount.Minor),
		minor(taken), minor(refunded), strconv.Itoa(bill.Attempt), bill.ChargeID, bill.IntentID})
}

func (b *reportBuilder) end() (domain.RunReport, error) {
	if err := b.bill(); err != nil {
		return b.report, err
	}
	b.lines.Flush()
	if err := b.lines.Error(); err != nil {
		return b.report, err
	}
	b.report.FactsSHA256, b.report.BillsSHA256 = hex.EncodeToString(b.facts.Sum(nil)), hex.EncodeToString(b.bills.Sum(nil))
	return b.report, nil
}

// closingOf is the last closing of a run, or nil.
func closingOf(ctx context.Context, tx pgx.Tx, p domain.Period) (*RunClosing, error) {
	var payload, metadata []byte
	err := tx.QueryRow(ctx, `SELECT payload, metadata FROM events WHERE stream_id = $1 AND event_type = $2 ORDER BY stream_version DESC LIMIT 1`,
		string(p.RunStream()), domain.RunClosed{}.EventName()).Scan(&payload, &metadata)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the closing of run %s: %w", p, err)
	}
	var closed domain.RunClosed
	var meta eventstore.Meta
	if err := errors.Join(json.Unmarshal(payload, &closed), json.Unmarshal(metadata, &meta)); err != nil {
		return nil, fmt.Errorf("read the closing of run %s: %w", p, err)
	}
	return &RunClosing{closed.At.UTC(), meta.Actor, closed.ReconciliationID, closed.ReportSHA256, closed.AsOf}, nil
}
