package projections

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Refund is one refund, or a proposal to make one, as readers see it.
type Refund struct {
	CustomerID     domain.CustomerID `json:"customer_id"`
	BillingPeriod  domain.Period     `json:"billing_period"`
	Status         string            `json:"status"`              // a refund's state; of a proposal: proposed, answered or dismissed
	RefundID       string            `json:"refund_id,omitempty"` // the caller's; empty: made outside Billonce, or a proposal
	StripeRefundID string            `json:"stripe_refund_id,omitempty"`
	ChargeID       string            `json:"charge_id,omitempty"`
	Amount         Money             `json:"amount"`
	Code           string            `json:"code,omitempty"`
	Reason         string            `json:"reason,omitempty"`    // of the status; of a proposal: why it was made
	Dismissed      string            `json:"dismissed,omitempty"` // why a proposed refund is not made
	Evidence       string            `json:"evidence,omitempty"`
	Source         domain.Source     `json:"source,omitempty"`
	RequestedAt    *time.Time        `json:"requested_at,omitempty"` // asked for, or proposed
	UpdatedAt      time.Time         `json:"updated_at"`
	Known          eventstore.Place  `json:"known_position"` // the list's order
	Position       eventstore.Place  `json:"position"`       // of the newest fact
}

// RefundsQuery asks for refunds. Empty filters let everything pass.
type RefundsQuery struct {
	Status   string // a status, or the group open
	Period   string
	Customer string
	Charge   string
	Page
}

// refundStatuses are the statuses a row can have.
var refundStatuses = []string{
	string(domain.RefundStateRequested), string(domain.RefundStateUnknown), string(domain.RefundStatePending), string(domain.RefundStateSucceeded),
	string(domain.RefundStateFailed), string(domain.RefundStateCancelled), string(domain.RefundStateRefused), string(domain.RefundStateReview),
	ProposalOpen, ProposalAnswered, ProposalDismissed,
}

// openRefunds are those of which something may still come.
var openRefunds = []string{
	string(domain.RefundStateRequested), string(domain.RefundStateUnknown), string(domain.RefundStatePending), string(domain.RefundStateReview), ProposalOpen,
}

// Refunds lists refunds and proposals in the order in which they became known:
// by the position of the fact that told of each, which no two share.
func (r Reads) Refunds(ctx context.Context, q RefundsQuery) (List[Refund], error) {
	list := List[Refund]{Items: []Refund{}}
	k, err := q.keyset(1, "refunds", q.Status, q.Period, q.Customer, q.Charge)
	if err != nil {
		return list, err
	}
	where, args, err := q.where()
	if err != nil {
		return list, err
	}
	if k.after != nil {
		position, err := strconv.ParseInt(k.after[0], 10, 64)
		if err != nil {
			return list, badCursor()
		}
		args = append(args, position)
		where = append(where, fmt.Sprintf("first_position %s $%d", k.compare, len(args)))
	}
	args = append(args, k.limit+1)
	sql := refundsTable.selectSQL(fmt.Sprintf("WHERE %s ORDER BY first_position %s LIMIT $%d", strings.Join(where, " AND "), k.order, len(args)))
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if list.AsOf, err = asOf(ctx, tx, Refunds); err != nil {
			return err
		}
		rows, err := refundsTable.query(ctx, tx, sql, args...)
		if err != nil {
			return err
		}
		rows, more := cut(rows, k.limit)
		for _, row := range rows {
			list.Items = append(list.Items, row.read())
		}
		if more {
			list.NextCursor = k.next(strconv.FormatInt(rows[len(rows)-1].first, 10))
		}
		return nil
	})
	return list, wrap(err, "list refunds")
}

// where spells the filters as SQL made of constants, and their arguments.
func (q RefundsQuery) where() (where []string, args []any, err error) {
	where = []string{"true"}
	with := func(condition string, arg any) {
		args = append(args, arg)
		where = append(where, fmt.Sprintf(condition, len(args)))
	}
	switch {
	case q.Status == "":
	case q.Status == GroupOpen:
		with("status = ANY ($%d)", openRefunds)
	case slices.Contains(refundStatuses, q.Status):
		with("status = $%d", q.Status)
	default:
		return nil, nil, domain.InvalidField("status", "must be a status (%s) or open", strings.Join(refundStatuses, ", "))
	}
	if q.Period != "" {
		p, err := parse("period", q.Period, domain.ParsePeriod)
		if err != nil {
			return nil, nil, err
		}
		with("billing_period = $%d", p.String())
	}
	if q.Customer != "" {
		id, err := parse("customer", q.Customer, domain.ParseCustomerID)
		if err != nil {
			return nil, nil, err
		}
		with("customer_id = $%d", string(id))
	}
	if q.Charge != "" {
		id, err := domain.ParseStripeID("charge", "", q.Charge)
		if err != nil {
			return nil, nil, domain.InvalidField("charge", "must be the id of a charge at Stripe")
		}
		with("charge_id = $%d", id)
	}
	return where, args, nil
}

func (row *refundRow) read() Refund {
	return Refund{
		CustomerID: domain.CustomerID(row.customer), BillingPeriod: periodOf(row.period), Status: row.status,
		RefundID: row.refundID, StripeRefundID: row.stripeID, ChargeID: row.charge, Amount: money(row.amount, row.currency),
		Code: row.code, Reason: row.reason, Dismissed: row.dismissed, Evidence: row.evidence, Source: domain.Source(row.source),
		RequestedAt: inUTC(row.requestedAt), UpdatedAt: row.updatedAt.UTC(),
		Known:    eventstore.Place{Partition: row.partition, Position: row.first},
		Position: eventstore.Place{Partition: row.partition, Position: row.last},
	}
}
