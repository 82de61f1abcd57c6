package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
)

// record is a row of billing_records.
type record struct {
	customer, period string
	partition        int16
	attempt, start   int
	key              string
	amount           domain.Money
	stripe, method   string
	params           string
	state            string
	intent           string
	outcome          string
}

// open lists the row's states that fit a bill's status. Lease, fence and
// back-off are the row's own; a claim moves it to sending before a fact follows.
var open = map[domain.BillStatus][]string{
	domain.BillRequested:           {"reserved", "sending"},
	domain.BillStarted:             {"sending"},
	domain.BillUnknown:             {"unknown", "sending"},
	domain.BillActionRequired:      {"action_required", "sending"},
	domain.BillHeld:                {"held", "sending"},
	domain.BillWaiting:             {"waiting", "reserved", "sending"},
	domain.BillDeclined:            {"declined"},
	domain.BillRejected:            {"rejected"},
	domain.BillNeedsReview:         {"needs_review"},
	domain.BillClosingStatus:       {"closing", "sending"},
	domain.BillPaid:                {"succeeded"},
	domain.BillSettledStatus:       {"void"},
	domain.BillWrittenOffStatus:    {"void"},
	domain.BillVoid:                {"void"},
	domain.BillUncollectibleStatus: {"declined"},
	domain.BillDue:                 {},
	domain.BillFound:               {},
}

// billingRecords compares the pre-flight rows of a partition's bills.
func (w *worker) billingRecords(ctx context.Context, a *auditor) error {
	var customers, periods []string
	for _, c := range a.customers {
		for p, t := range c.bills {
			if t.requested > 0 {
				customers, periods = append(customers, c.id), append(periods, p.String())
			}
		}
	}
	if len(customers) == 0 {
		return nil
	}
	seen := make(map[[2]string]bool, len(customers))
	rows, err := w.fold.Query(ctx, `SELECT customer_id, billing_period, partition, attempt, start, key, amount, currency, stripe_customer_id, payment_method,
			params::text, state, coalesce(intent_id, ''), coalesce(outcome::text, '')
		FROM billing_records WHERE (customer_id, billing_period) IN (SELECT * FROM unnest($1::text[], $2::text[]))`, customers, periods)
	if err == nil {
		var r record
		_, err = pgx.ForEachRow(rows, []any{&r.customer, &r.period, &r.partition, &r.attempt, &r.start, &r.key, &r.amount.Minor, (*string)(&r.amount.Currency),
			&r.stripe, &r.method, &r.params, &r.state, &r.intent, &r.outcome}, func() error {
			seen[[2]string{r.customer, r.period}] = true
			w.met.mark(metBilling, r.customer, r.period)
			period, err := domain.ParsePeriod(r.period)
			if err != nil {
				return err
			}
			c := a.customers[r.customer]
			if c.broken {
				return nil // what it should say is not known
			}
			if detail := r.wrong(c, period, w.readers[preflight].behindOn(c, preflight)); detail != "" {
				w.found(Difference{KindRow, "billing_records " + r.customer + " " + r.period, detail, reconcileRow(r.customer, r.period)})
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("compare billing_records: %w", err)
	}
	for i := range customers {
		c := a.customers[customers[i]]
		if !seen[[2]string{customers[i], periods[i]}] && !w.readers[preflight].behindOn(c, preflight) {
			w.found(Difference{KindRow, "billing_records " + customers[i] + " " + periods[i], "the row is missing: the collector does not know of the bill", readAgain("preflight")})
		}
	}
	return nil
}

// wrong says in which way a row differs from its bill; "": in none. Behind: the
// row may have to follow the log yet, but is never ahead of it.
func (r *record) wrong(c *account, period domain.Period, behind bool) string {
	b, _ := c.state.Bill(period)
	t := c.bills[period]
	switch {
	case r.partition != c.partition:
		return fmt.Sprintf("it stands in partition %d, its customer in %d", r.partition, c.partition)
	case r.attempt > b.Attempt:
		return fmt.Sprintf("it is at attempt %d, the log at %d", r.attempt, b.Attempt)
	case r.key != string(domain.ChargeKey(domain.CustomerID(c.id), period, r.attempt)):
		return "its charge key is not that of its attempt"
	case r.amount != b.Amount:
		return fmt.Sprintf("it asks for %s, the bill is %s", r.amount, b.Amount)
	case r.attempt == b.Attempt && (r.stripe != b.StripeCustomerID || r.method != b.PaymentMethodID):
		return fmt.Sprintf("it charges %s by %s, the log asked for %s by %s", r.stripe, r.method, b.StripeCustomerID, b.PaymentMethodID)
	case !r.frozen():
		return "the frozen parameters are not those of its columns"
	case r.attempt == b.Attempt && r.start > b.Start:
		return fmt.Sprintf("it has started %d times, the log knows of %d", r.start, b.Start)
	case r.intent != "" && !slices.Contains(t.intents, r.intent):
		return "the log never committed its intent " + r.intent
	case r.state == "succeeded" && b.Status != domain.BillPaid:
		return fmt.Sprintf("it says succeeded, the log says %s", b.Status)
	case r.state == "void" && !b.Status.Ended():
		return fmt.Sprintf("it says void, the log says %s", b.Status)
	}
	if charge := r.charge(); r.state == "succeeded" && charge != "" && !slices.Contains(t.charges, charge) {
		return "it was paid by " + charge + ", of which the log knows nothing"
	}
	if behind || slices.Contains(open[b.Status], r.state) && r.attempt == b.Attempt {
		return ""
	}
	if b.Status.Final() && slices.Contains(open[b.Status], r.state) {
		return "" // the bill ended at an attempt that needed no further row
	}
	if r.state == "reserved" && r.outcome == "" && !b.Status.Final() && r.start == 0 {
		return "" // it was built anew, and waits for a collector to look at its bill
	}
	if r.attempt < b.Attempt {
		return fmt.Sprintf("it is at attempt %d and says %s, the log is at attempt %d", r.attempt, r.state, b.Attempt)
	}
	return fmt.Sprintf("it says %s, the log says %s", r.state, b.Status)
}

// frozen reports whether the request's parameters are those of the columns.
func (r *record) frozen() bool {
	var p struct {
		AmountMinor      int64             `json:"amount_minor"`
		Currency         string            `json:"currency"`
		StripeCustomerID string            `json:"stripe_customer_id"`
		PaymentMethodID  string            `json:"payment_method_id"`
		Metadata         map[string]string `json:"metadata"`
	}
	return json.Unmarshal([]byte(r.params), &p) == nil && p.AmountMinor == r.amount.Minor && p.Currency == string(r.amount.Currency) &&
		p.StripeCustomerID == r.stripe && p.PaymentMethodID == r.method && p.Metadata["customer_id"] == r.customer && p.Metadata["billing_period"] == r.period
}

// charge is the charge by which the row's last outcome says that it was paid.
func (r *record) charge() string {
	var o domain.Outcome
	if json.Unmarshal([]byte(r.outcome), &o) != nil || o.Class != domain.Paid {
		return ""
	}
	return o.ChargeID
}

// refundStates lists the row's states that fit a refund's.
var refundStates = map[domain.RefundState][]string{
	domain.RefundStateRequested: {"requested", "sending"},
	domain.RefundStateUnknown:   {"unknown", "sending"},
	domain.RefundStatePending:   {"pending", "sending"},
}

// refundRecords compares the pre-flight rows of a partition's refunds.
func (w *worker) refundRecords(ctx context.Context, a *auditor) error {
	type asked struct {
		c *account
		e domain.RefundRequested
	}
	wanted := map[[2]string]asked{}
	var customers, ids []string
	for _, c := range a.customers {
		for _, t := range c.bills {
			for _, e := range t.refunds {
				wanted[[2]string{c.id, e.RefundID}] = asked{c, e}
				customers, ids = append(customers, c.id), append(ids, e.RefundID)
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := w.fold.Query(ctx, `SELECT customer_id, refund_id, billing_period, charge_id, key, amount, currency, state FROM refund_records
		WHERE (customer_id, refund_id) IN (SELECT * FROM unnest($1::text[], $2::text[]))`, customers, ids)
	if err == nil {
		var customer, id, period, charge, key, currency, state string
		var amount int64
		_, err = pgx.ForEachRow(rows, []any{&customer, &id, &period, &charge, &key, &amount, &currency, &state}, func() error {
			w.met.mark(metRefund, customer, id)
			name := [2]string{customer, id}
			q := wanted[name]
			delete(wanted, name)
			if q.c.broken {
				return nil
			}
			known, _ := q.c.state.MoneyBack(q.e.BillingPeriod).Refund(id, "")
			detail := ""
			switch fits := append([]string{string(known.State)}, refundStates[known.State]...); {
			case period != q.e.BillingPeriod.String() || charge != q.e.ChargeID || key != string(q.e.Key) || amount != q.e.Minor || currency != string(q.e.Currency):
				detail = "its frozen parameters are not those that were requested"
			case !slices.Contains(fits, state) && !w.readers[refundPreflight].behindOn(q.c, refundPreflight):
				detail = fmt.Sprintf("it says %s, the log says %s", state, known.State)
			}
			if detail != "" {
				w.found(Difference{KindRow, "refund_records " + customer + " " + id, detail, "look at the bill: billingctl bill " + customer + " " + q.e.BillingPeriod.String()})
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("compare refund_records: %w", err)
	}
	for name, q := range wanted {
		if !w.readers[refundPreflight].behindOn(q.c, refundPreflight) {
			w.found(Difference{KindRow, "refund_records " + name[0] + " " + name[1], "the row is missing: nobody carries the refund out", readAgain("refund-preflight")})
		}
	}
	return nil
}

// reconcileRow is what brings a pre-flight row back to its bill.
func reconcileRow(customer, period string) string {
	return "billingctl reconcile --period " + period + " lets a paid row follow the log; whatever else it is, look at the bill: billingctl bill " + customer + " " + period
}

// readAgain is what makes an effectful processor read the log again.
func readAgain(processor string) string {
	return "let " + processor + " read the log again: billingctl saga plan " + processor + " prints what follows from that and the digest to sign off; then the same with --apply"
}
