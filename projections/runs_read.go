package projections

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
)

// Run is everything that fell due, or was asked for, under one period label.
type Run struct {
	BillingPeriod domain.Period `json:"billing_period"`
	Bills         int64         `json:"bills"`
	Paid          int64         `json:"paid"`
	Open          int64         `json:"open"`   // not ended: still to be collected, retried, decided or cleared
	Closed        int64         `json:"closed"` // ended without money through us: settled, written off, void
	Statuses      []Tally       `json:"statuses"`
	Totals        []RunTotal    `json:"totals"` // per currency, by its code
	Control       RunControl    `json:"control"`
}

// Tally is how many bills stand at a status.
type Tally struct {
	Status domain.BillStatus `json:"status"`
	Bills  int64             `json:"bills"`
}

// RunTotal is a run in one currency. Expected is Paid, Open and Closed together.
type RunTotal struct {
	Currency domain.Currency `json:"currency"`
	Bills    int64           `json:"bills"`
	Expected Money           `json:"expected"` // frozen amounts of all bills
	Paid     Money           `json:"paid"`     // frozen amounts of what is paid
	Taken    Money           `json:"taken"`    // what Stripe took; anything but Paid is a finding
	Open     Money           `json:"open"`
	Closed   Money           `json:"closed"`
	Statuses []StatusTotal   `json:"statuses"`
}

// StatusTotal is how many bills stand at a status, and for how much.
type StatusTotal struct {
	Status domain.BillStatus `json:"status"`
	Bills  int64             `json:"bills"`
	Amount Money             `json:"amount"`
}

// RunAt is a run and the moment it was read at.
type RunAt struct {
	Run
	Progress RunProgress     `json:"progress"`
	Manifest []ManifestTotal `json:"manifest"`          // per currency, by its code: what the run is expected to take
	Closing  *RunClosing     `json:"closing,omitempty"` // the last one
	AsOf     AsOf            `json:"as_of"`
}

// Runs lists runs, ordered by the day their periods begin, then by label.
func (r Reads) Runs(ctx context.Context, page Page) (List[Run], error) {
	list := List[Run]{Items: []Run{}}
	k, err := page.keyset(1, "runs")
	if err != nil {
		return list, err
	}
	where, args := "", []any{k.limit + 1}
	if k.after != nil {
		last, err := domain.ParsePeriod(k.after[0])
		if err != nil {
			return list, badCursor()
		}
		where, args = "WHERE (begins, billing_period) "+k.compare+" ($2::date, $3::text)", append(args, begins(last), last.String())
	}
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if list.AsOf, err = asOf(ctx, tx, Runs); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT billing_period FROM run_totals `+where+`
			GROUP BY begins, billing_period ORDER BY begins `+k.order+`, billing_period `+k.order+` LIMIT $1`, args...)
		if err != nil {
			return err
		}
		labels, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		labels, more := cut(labels, k.limit)
		if more {
			list.NextCursor = k.next(labels[len(labels)-1])
		}
		list.Items, _, err = runs(ctx, tx, labels)
		return err
	})
	return list, wrap(err, "list runs")
}

// ErrUnknownRun is what Run returns for a period that nothing is known of.
var ErrUnknownRun = &domain.Error{Kind: domain.NotFound, Code: "unknown_run", Msg: "nothing has fallen due, is expected or was decided under this period"}

// Run is the run of one period label. It returns ErrUnknownRun.
func (r Reads) Run(ctx context.Context, period string) (RunAt, error) {
	var run RunAt
	p, err := parse("period", period, domain.ParsePeriod)
	if err != nil {
		return run, err
	}
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if run.AsOf, err = asOf(ctx, tx, Runs); err != nil {
			return err
		}
		found, decided, err := runs(ctx, tx, []string{p.String()})
		if err != nil {
			return err
		}
		if run.Manifest, err = manifestOf(ctx, tx, p.String()); err != nil {
			return err
		}
		if run.Closing, err = closingOf(ctx, tx, p); err != nil {
			return err
		}
		if found[0].Bills == 0 && len(run.Manifest) == 0 && !decided[0] {
			return ErrUnknownRun
		}
		run.Run = found[0]
		run.Progress, err = progressOf(ctx, tx, run.Run, run.Manifest)
		return err
	})
	return run, wrap(err, "read the run")
}

// runs adds up the totals of some labels, in their order. Decided says for which
// something stands in the way, or did.
func runs(ctx context.Context, tx pgx.Tx, labels []string) (found []Run, decided []bool, err error) {
	rows, err := tx.Query(ctx, `SELECT billing_period, currency, status, sum(bills)::bigint, sum(amount_minor)::bigint, sum(taken_minor)::bigint
		FROM run_totals WHERE billing_period = ANY ($1) GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`, labels)
	if err != nil {
		return nil, nil, err
	}
	found = make([]Run, len(labels))
	for i, label := range labels {
		found[i] = Run{BillingPeriod: periodOf(label), Statuses: []Tally{}, Totals: []RunTotal{}}
	}
	var t runTotal
	_, err = pgx.ForEachRow(rows, []any{&t.period, &t.currency, &t.status, &t.bills, &t.amount, &t.taken}, func() error {
		return found[slices.Index(labels, t.period)].add(t)
	})
	if err != nil {
		return nil, nil, err
	}
	held, decided, err := controls(ctx, tx, labels)
	if err != nil {
		return nil, nil, err
	}
	for i := range found {
		found[i].Control = held[i]
		slices.SortFunc(found[i].Statuses, func(a, b Tally) int { return cmp.Compare(a.Status, b.Status) })
	}
	return found, decided, nil
}

// add adds a total of one currency and status; totals of a currency come
// together.
func (r *Run) add(t runTotal) error {
	status := domain.BillStatus(t.status)
	if len(r.Totals) == 0 || r.Totals[len(r.Totals)-1].Currency != domain.Currency(t.currency) {
		zero := money(0, t.currency)
		r.Totals = append(r.Totals, RunTotal{
			Currency: domain.Currency(t.currency), Expected: zero, Paid: zero, Taken: zero, Open: zero, Closed: zero, Statuses: []StatusTotal{},
		})
	}
	total := &r.Totals[len(r.Totals)-1]
	share, count := &total.Open, &r.Open
	switch {
	case status == domain.BillPaid:
		share, count = &total.Paid, &r.Paid
	case status.Final():
		share, count = &total.Closed, &r.Closed
	}
	*count += t.bills
	r.Bills += t.bills
	total.Bills += t.bills
	if err := errors.Join(share.add(t.amount), total.Expected.add(t.amount), total.Taken.add(t.taken)); err != nil {
		return err
	}
	if t.bills == 0 {
		return nil // only something taken in another currency than asked
	}
	total.Statuses = append(total.Statuses, StatusTotal{status, t.bills, money(t.amount, t.currency)})
	i := slices.IndexFunc(r.Statuses, func(tally Tally) bool { return tally.Status == status })
	if i < 0 {
		r.Statuses = append(r.Statuses, Tally{Status: status})
		i = len(r.Statuses) - 1
	}
	r.Statuses[i].Bills += t.bills
	return nil
}
