package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
)

// PageQuery are the parameters of a list.
type PageQuery struct {
	Cursor string `query:"cursor" doc:"next_cursor of the page before. It is opaque, and good for the same list, filters and order."`
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"Items of a page at most."`
	OrderQuery
}

// OrderQuery is the direction of a list.
type OrderQuery struct {
	Order string `query:"order" enum:"asc,desc" default:"asc" doc:"Direction of the list's one order."`
}

func (q PageQuery) page() projections.Page {
	return projections.Page{Cursor: q.Cursor, Limit: q.Limit, Order: projections.Order(q.Order)}
}

// FreshQuery asks for an answer that contains what the caller has written.
type FreshQuery struct {
	AfterPosition string `query:"after_position" example:"17-40213" doc:"Answer only once this place of the log, from a receipt, is contained."`
	Wait          string `query:"wait" example:"5s" doc:"How long to wait for after_position: 5s if not given, 1m at most. If it is not contained by then, the answer is 504 with as_of."`
}

// defaultFreshWait is how long a read waits for after_position unless told.
const defaultFreshWait = 5 * time.Second

func (q FreshQuery) parse() (place eventstore.Place, wait time.Duration, err error) {
	var faults []domain.FieldError
	note := func(err error) {
		if e, ok := errors.AsType[*domain.Error](err); ok {
			faults = append(faults, e.Fields...)
		}
	}
	wait, err = parseWait(q.Wait, defaultFreshWait)
	note(err)
	if q.AfterPosition != "" {
		place, err = eventstore.ParsePlace(q.AfterPosition)
		note(err)
	} else if q.Wait != "" {
		note(domain.InvalidField("wait", "says how long to wait for after_position, which is missing"))
	}
	if len(faults) > 0 {
		return place, wait, domain.InvalidFields(faults...)
	}
	return place, wait, nil
}

// fresh waits until a projection contains what the caller has written.
func (s *Server) fresh(ctx context.Context, p projections.Projection, q FreshQuery) error {
	place, wait, err := q.parse()
	if err != nil || place.Position == 0 {
		return err
	}
	ctx, cancel := s.untilDrained(ctx)
	defer cancel()
	reached, err := s.reads.Await(ctx, p, place, wait)
	if err != nil || reached {
		return err
	}
	behind := problem(http.StatusGatewayTimeout, "not_caught_up", "the read model %s does not contain %s yet", p.Name, place)
	behind.retryAfter = retryAfter
	if at, err := tracking.Token(ctx, s.store.Pool(), p.Name, place.Partition); err == nil {
		behind.AsOf = &at
	}
	return behind
}

// read registers a read. Its answers and its parameters document themselves by
// their types.
func read[Q, A any](s *Server, op huma.Operation, answer func(context.Context, *Q) (A, error)) {
	op.Responses = map[string]*huma.Response{"default": s.problemResponse()}
	huma.Register(s.huma, op, func(ctx context.Context, q *Q) (*body[A], error) {
		a, err := answer(ctx, q)
		if err != nil {
			return nil, exchangeOf(ctx).failed(err)
		}
		return &body[A]{a}, nil
	})
}

type body[A any] struct{ Body A }

func (s *Server) registerReads() {
	get := func(id, path, summary, order string) huma.Operation {
		op := operation(id, http.MethodGet, path, tagReads, summary, access.Read)
		if order != "" {
			op.Description = "Ordered by " + order + "."
		}
		return op
	}
	reads := s.reads

	type customersQuery struct {
		PageQuery
		FreshQuery
	}
	read(s, get("list-customers", "/v1/customers", "List customers", "customer_id, bytewise"),
		func(ctx context.Context, q *customersQuery) (a projections.List[projections.Customer], err error) {
			if err = s.fresh(ctx, projections.Customers, q.FreshQuery); err != nil {
				return a, err
			}
			return reads.Customers(ctx, q.page())
		})

	type customerQuery struct {
		ID string `path:"id" example:"cust_123"`
		FreshQuery
	}
	read(s, get("get-customer", "/v1/customers/{id}", "See a customer", ""),
		func(ctx context.Context, q *customerQuery) (a projections.CustomerAt, err error) {
			if err = s.fresh(ctx, projections.Customers, q.FreshQuery); err != nil {
				return a, err
			}
			a, err = reads.Customer(ctx, q.ID)
			return a, asOf(err, a.AsOf.Position)
		})

	type billsQuery struct {
		ID string `path:"id" example:"cust_123"`
		PageQuery
		FreshQuery
	}
	read(s, get("list-bills", "/v1/customers/{id}/periods", "List a customer's bills", "the first day of the billing period, then by its label"),
		func(ctx context.Context, q *billsQuery) (a projections.List[projections.Bill], err error) {
			if err = s.fresh(ctx, projections.Bills, q.FreshQuery); err != nil {
				return a, err
			}
			a, err = reads.Bills(ctx, q.ID, q.page())
			return a, asOf(err, a.AsOf.Position)
		})

	type storyQuery struct {
		ID     string `path:"id" example:"cust_123"`
		Period string `path:"period" example:"2026-11"`
		FreshQuery
	}
	story := get("get-bill", "/v1/customers/{id}/periods/{period}", "See a bill with its whole story", "")
	story.Description = "Folded from the log itself: it is never behind, and after_position never waits."
	read(s, story, func(ctx context.Context, q *storyQuery) (a BillStory, err error) {
		if _, _, err = q.FreshQuery.parse(); err != nil {
			return a, err
		}
		return s.story(ctx, q.ID, q.Period)
	})

	type chargesQuery struct {
		Status   string `query:"status" example:"stuck" doc:"A status of a charge, or one of the groups: open (money may still come of it), stuck (it rests until somebody or something moves it), parked (facts of the customer wait in dead letters)."`
		Period   string `query:"period" example:"2026-11" doc:"A billing period."`
		Customer string `query:"customer" example:"cust_123" doc:"A customer's id."`
		PageQuery
		FreshQuery
	}
	read(s, get("list-charges", "/v1/charges", "List charges", "the position of the fact that requested each"),
		func(ctx context.Context, q *chargesQuery) (a projections.List[projections.Charge], err error) {
			if err = s.fresh(ctx, projections.Charges, q.FreshQuery); err != nil {
				return a, err
			}
			if err = s.fresh(ctx, projections.Refunds, q.FreshQuery); err != nil { // what went back of each
				return a, err
			}
			return reads.Charges(ctx, projections.ChargesQuery{Status: q.Status, Period: q.Period, Customer: q.Customer, Page: q.page()})
		})

	type refundsQuery struct {
		Status   string `query:"status" example:"proposed" doc:"A refund's state (requested, unknown, pending, succeeded, failed, cancelled, refused, needs_review), a proposal's (proposed, answered, dismissed), or open: something may still come of it."`
		Period   string `query:"period" example:"2026-11" doc:"A billing period."`
		Customer string `query:"customer" example:"cust_123" doc:"A customer's id."`
		Charge   string `query:"charge" example:"ch_3NvXyz" doc:"A charge's id at Stripe."`
		PageQuery
		FreshQuery
	}
	refunds := get("list-refunds", "/v1/refunds", "List refunds and proposals to refund", "the position of the fact that told of each")
	refunds.Description += " A proposal is a charge that has taken money which is not owed; refund-charge carries it out, dismiss-refund-proposal dismisses it. A refund needs review if Stripe holds another one under its name; accept-refund lets that stand."
	read(s, refunds, func(ctx context.Context, q *refundsQuery) (a projections.List[projections.Refund], err error) {
		if err = s.fresh(ctx, projections.Refunds, q.FreshQuery); err != nil {
			return a, err
		}
		return reads.Refunds(ctx, projections.RefundsQuery{Status: q.Status, Period: q.Period, Customer: q.Customer, Charge: q.Charge, Page: q.page()})
	})

	type scheduleQuery struct {
		Customer string `query:"customer" example:"cust_123" doc:"A customer's id."`
		Command  string `query:"command" enum:"declare-billing-due,plan-dunning,retry-charge" doc:"One command alone: declare-billing-due is a subscription's next due, plan-dunning the decision about a decline, retry-charge a declined bill's next attempt."`
		PageQuery
		FreshQuery
	}
	schedule := get("list-schedule", "/v1/schedule", "See who is due when", "due_at, then key")
	schedule.Description += " The next due of each subscription that is neither paused nor over, and what is scheduled for declined bills; stop-dunning and reschedule-dunning change the latter. as_of is how far subscriptions are read; what follows a decline is written with the decision."
	read(s, schedule, func(ctx context.Context, q *scheduleQuery) (a projections.List[projections.Scheduled], err error) {
		if err = s.fresh(ctx, projections.Schedule, q.FreshQuery); err != nil {
			return a, err
		}
		return reads.Scheduled(ctx, projections.ScheduledQuery{Customer: q.Customer, Command: q.Command, Page: q.page()})
	})

	type runsQuery struct {
		PageQuery
		FreshQuery
	}
	read(s, get("list-runs", "/v1/runs", "List runs", "the first day of the billing period, then by its label"),
		func(ctx context.Context, q *runsQuery) (a projections.List[projections.Run], err error) {
			if err = s.fresh(ctx, projections.Runs, q.FreshQuery); err != nil {
				return a, err
			}
			return reads.Runs(ctx, q.page())
		})

	type runQuery struct {
		Period string `path:"period" example:"2026-11"`
		FreshQuery
	}
	read(s, get("get-run", "/v1/runs/{period}", "See the run of a period", ""),
		func(ctx context.Context, q *runQuery) (a projections.RunAt, err error) {
			if err = s.fresh(ctx, projections.Runs, q.FreshQuery); err != nil {
				return a, err
			}
			a, err = reads.Run(ctx, q.Period)
			return a, asOf(err, a.AsOf.Position)
		})

	type revenueQuery struct {
		From string `query:"from" example:"2026-01" doc:"First month; not given: the first there is."`
		To   string `query:"to" example:"2026-12" doc:"Last month; not given: the last there is."`
		OrderQuery
		FreshQuery
	}
	read(s, get("list-revenue", "/v1/revenue", "See revenue per month and currency", "month, then currency code"),
		func(ctx context.Context, q *revenueQuery) (a projections.List[projections.MonthRevenue], err error) {
			if err = s.fresh(ctx, projections.Revenue, q.FreshQuery); err != nil {
				return a, err
			}
			return reads.Revenue(ctx, q.From, q.To, projections.Order(q.Order))
		})

	type factsQuery struct {
		After  string `query:"after" example:"17-40213" doc:"A place in the log, or next_cursor of the page before, which misses nothing. In ascending order the vector of an answer's as_of, or an id of the feed, too."`
		Stream string `query:"stream" example:"customer/cust_123" doc:"One stream alone."`
		Type   string `query:"type" example:"customer.billed.v1" doc:"One type of fact alone."`
		Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"Facts of a page at most."`
		OrderQuery
		FreshQuery
	}
	facts := get("list-events", "/v1/events", "Read the log", "position")
	facts.Description += " GET /v1/events/stream follows it. Read from the log itself: after_position never waits."
	read(s, facts, func(ctx context.Context, q *factsQuery) (a projections.List[projections.Fact], err error) {
		if _, _, err = q.FreshQuery.parse(); err != nil {
			return a, err
		}
		return reads.Facts(ctx, projections.FactsQuery{After: q.After, Stream: q.Stream, Type: q.Type, Limit: q.Limit, Order: projections.Order(q.Order)})
	})
}

// asOf tells a caller who is told that there is nothing how old that news is.
func asOf(err error, at eventstore.Place) error {
	if err == nil || at.Position == 0 {
		return err
	}
	p := *problemOf(err)
	if p.Status == http.StatusNotFound {
		p.AsOf = &at
	}
	return &p
}
