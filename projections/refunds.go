package projections

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Refunds keeps one row a refund and one a proposal to refund, as the domain's
// own fold of what went back has them.
var Refunds = Projection{
	Name: "refunds", Tables: []string{"refunds"}, fold: foldRefunds,
	Events: names(domain.RefundRequested{}, domain.RefundRecorded{}, domain.RefundProposed{}, domain.RefundProposalDismissed{}),
}

// The statuses of a proposal; a refund has those of domain.RefundState.
const (
	ProposalOpen      = "proposed"
	ProposalAnswered  = "answered" // its charge is refunded, or about to be
	ProposalDismissed = "dismissed"
)

// refundRow is a row of refunds.
type refundRow struct {
	customer, period        string
	no                      int
	partition               int16
	status                  string
	refundID, stripeID      string
	charge                  string
	amount                  int64
	currency                string
	code, reason, dismissed string
	evidence, source        string
	first, last             int64
	requestedAt             *time.Time
	updatedAt               time.Time

	changed bool // in this page
}

var refundsTable = table[refundRow]{name: "refunds", keys: 3, columns: []column[refundRow]{
	col("customer_id", func(r *refundRow) *string { return &r.customer }),
	col("billing_period", func(r *refundRow) *string { return &r.period }),
	col("no", func(r *refundRow) *int { return &r.no }),
	col("partition", func(r *refundRow) *int16 { return &r.partition }),
	col("status", func(r *refundRow) *string { return &r.status }),
	col("refund_id", func(r *refundRow) *string { return &r.refundID }),
	col("stripe_refund_id", func(r *refundRow) *string { return &r.stripeID }),
	col("charge_id", func(r *refundRow) *string { return &r.charge }),
	col("amount_minor", func(r *refundRow) *int64 { return &r.amount }),
	col("currency", func(r *refundRow) *string { return &r.currency }),
	col("code", func(r *refundRow) *string { return &r.code }),
	col("reason", func(r *refundRow) *string { return &r.reason }),
	col("dismissed", func(r *refundRow) *string { return &r.dismissed }),
	col("evidence", func(r *refundRow) *string { return &r.evidence }),
	col("source", func(r *refundRow) *string { return &r.source }),
	col("first_position", func(r *refundRow) *int64 { return &r.first }),
	col("last_position", func(r *refundRow) *int64 { return &r.last }),
	col("requested_at", func(r *refundRow) **time.Time { return &r.requestedAt }),
	col("updated_at", func(r *refundRow) *time.Time { return &r.updatedAt }),
}}

func foldRefunds(ctx context.Context, tx pgx.Tx, events []eventstore.Recorded) error {
	rows, err := load(ctx, tx, refundsTable, touchedBy(events))
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b *refundRow) int { return a.no - b.no })
	page := newPage[givenBack]()
	for _, row := range rows {
		bill := page.bill(billKey{row.customer, row.period}, func() *givenBack { return blankGivenBack(periodOf(row.period)) })
		bill.add(row)
	}
	page.each(events, func(_ eventstore.Recorded, p domain.Period) *givenBack { return blankGivenBack(p) }, (*givenBack).apply)
	var changed []*refundRow
	for _, bill := range page.all {
		for _, row := range slices.Concat(bill.refunds, bill.proposals) {
			if row.changed {
				changed = append(changed, row)
			}
		}
	}
	writes := &pgx.Batch{}
	refundsTable.queueUpsert(writes, changed)
	return send(ctx, tx, writes)
}

// givenBack is the rows of one bill, and the domain's fold that they show.
type givenBack struct {
	state              domain.MoneyBack
	refunds, proposals []*refundRow    // as in state
	last               eventstore.Mark // the newest fact in any of them
}

func blankGivenBack(p domain.Period) *givenBack {
	return &givenBack{state: domain.MoneyBack{Period: p}}
}

func isProposal(status string) bool {
	return status == ProposalOpen || status == ProposalAnswered || status == ProposalDismissed
}

func (g *givenBack) add(row *refundRow) {
	amount := domain.Money{Minor: row.amount, Currency: domain.Currency(row.currency)}
	if isProposal(row.status) {
		g.proposals = append(g.proposals, row)
		g.state.Proposals = append(g.state.Proposals, domain.RefundProposal{ChargeID: row.charge, Amount: amount, Reason: row.reason, Dismissed: row.dismissed})
	} else {
		g.refunds = append(g.refunds, row)
		g.state.Refunds = append(g.state.Refunds, domain.Refund{
			RefundID: row.refundID, StripeRefundID: row.stripeID, ChargeID: row.charge, Amount: amount, State: domain.RefundState(row.status), Reason: row.reason,
		})
	}
	g.last.Position = max(g.last.Position, row.last)
}

// apply folds one fact about the bill into its rows.
func (g *givenBack) apply(r eventstore.Recorded) {
	if g.last.Covers(r) {
		return
	}
	g.last.Move(r)
	g.state = g.state.Evolve(r.Event)
	for i, refund := range g.state.Refunds {
		if i == len(g.refunds) {
			g.refunds = append(g.refunds, g.row(r))
		}
		row := g.refunds[i]
		before := *row
		row.status, row.refundID, row.stripeID = string(refund.State), refund.RefundID, refund.StripeRefundID
		row.charge, row.amount, row.currency, row.reason = refund.ChargeID, refund.Amount.Minor, string(refund.Amount.Currency), refund.Reason
		if *row == before && !row.about(r.Event) {
			continue
		}
		switch e := r.Event.(type) {
		case domain.RefundRequested:
			if row.first == r.Position {
				row.requestedAt = utc(r.RecordedAt)
			}
		case domain.RefundRecorded:
			row.code, row.evidence, row.source = e.Code, e.Evidence, string(e.Source)
		}
		row.touch(r)
	}
	for i, proposal := range g.state.Proposals {
		if i == len(g.proposals) {
			row := g.row(r)
			row.requestedAt = utc(r.RecordedAt)
			g.proposals = append(g.proposals, row)
		}
		row := g.proposals[i]
		before := *row
		row.charge, row.amount, row.currency = proposal.ChargeID, proposal.Amount.Minor, string(proposal.Amount.Currency)
		row.reason, row.dismissed = proposal.Reason, proposal.Dismissed
		switch {
		case g.state.Open(proposal):
			row.status = ProposalOpen
		case g.state.Refunded(proposal.ChargeID) > 0:
			row.status = ProposalAnswered
		default:
			row.status = ProposalDismissed
		}
		if *row != before {
			row.touch(r)
		}
	}
}

// about reports whether e is news of this very refund.
func (row *refundRow) about(e domain.Event) bool {
	news, ok := e.(domain.RefundRecorded)
	return ok && (news.StripeRefundID != "" && news.StripeRefundID == row.stripeID || news.StripeRefundID == "" && news.RefundID == row.refundID)
}

// row is the row of what has just become known.
func (g *givenBack) row(r eventstore.Recorded) *refundRow {
	return &refundRow{
		customer: r.SequenceKey, period: g.state.Period.String(), no: len(g.refunds) + len(g.proposals) + 1, partition: r.Partition, first: r.Position,
	}
}

func (row *refundRow) touch(r eventstore.Recorded) {
	row.last, row.updatedAt, row.changed = r.Position, r.RecordedAt.UTC(), true
}
