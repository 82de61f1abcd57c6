package imports

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// Result counts the rows of an import: Rows = Imported + Replayed + Failed.
type Result struct {
	Rows     int // that are not blank
	Imported int // of a dry run: those that would be sent
	Replayed int // had been imported before
	Failed   int
}

// RowError says why a row was refused.
type RowError struct {
	Row int // number of the line, from 1
	Err error
}

func (e RowError) Error() string { return fmt.Sprintf("row %d: %v", e.Row, e.Err) }

// Unwrap is the reason.
func (e RowError) Unwrap() error { return e.Err }

// Options of an import.
type Options struct {
	// Format of the file; the zero value is NDJSON.
	Format Format
	// DryRun reads and checks every row and sends nothing.
	DryRun bool
	// Used are idempotency keys that somebody has used at Stripe: a row of which
	// the next bills would be charged under one of them is refused.
	Used *UsedKeys
	// Refused is told of every row that is refused. Nil: nobody is.
	Refused func(RowError)
	// Progress is told how many rows are behind us. Nil: nobody is.
	Progress func(rows int)
}

const (
	chunk    = 500     // rows of one request
	lineMost = 1 << 20 // bytes of a row
	tries    = 8       // in a row that get no answer from a service which is away
)

// Run imports the rows that in holds. The error is about the import as a whole,
// such as a service that is away; refused rows are counted. A dry run needs no
// client.
func Run(ctx context.Context, c *client.Client, in io.Reader, o Options) (Result, error) {
	i := importer{ctx: ctx, client: c, options: o, seen: map[string]uint64{}}
	rows, err := o.Format.read(in)
	if err != nil {
		return i.result, err
	}
	for {
		number, fields, err := rows.next()
		if errors.Is(err, io.EOF) {
			return i.result, i.send()
		}
		if end, ok := errors.AsType[unreadable](err); ok {
			return i.result, RowError{number, end.error}
		}
		i.result.Rows++
		if err != nil {
			i.refuse(number, err)
			continue
		}
		r, err := parse(number, fields)
		if err == nil {
			err = i.known(r)
		}
		if err != nil {
			i.refuse(number, err)
			continue
		}
		if i.rows = append(i.rows, r); len(i.rows) == chunk {
			if err := i.send(); err != nil {
				return i.result, err
			}
		}
	}
}

type importer struct {
	ctx     context.Context
	client  *client.Client
	options Options
	rows    []*row // not sent yet
	result  Result
	seen    map[string]uint64 // of a dry run: what each customer's row says, as a digest
}

func (i *importer) refuse(number int, err error) {
	i.result.Failed++
	if i.options.Refused != nil {
		i.options.Refused(RowError{number, err})
	}
}

// known compares a row with what is known beside it: keys at Stripe and, where
// the service is not asked, the rows before it.
func (i *importer) known(r *row) error {
	if err := i.options.Used.check(r); err != nil {
		return err
	}
	if !i.options.DryRun {
		return nil
	}
	digest := r.digest()
	if former, twice := i.seen[r.customer]; twice && former != digest {
		return errors.New("customer_id stands in an earlier row, with other values")
	}
	i.seen[r.customer] = digest
	return nil
}

// send imports the rows at hand.
func (i *importer) send() error {
	rows := i.rows
	i.rows = nil
	if i.options.DryRun {
		i.result.Imported += len(rows)
	} else {
		for step := 0; ; step++ {
			var waiting []*row
			for _, r := range rows {
				if !r.refused && step < len(r.orders) {
					waiting = append(waiting, r)
				}
			}
			if len(waiting) == 0 {
				break
			}
			if err := i.step(step, waiting); err != nil {
				return err
			}
		}
		for _, r := range rows {
			switch {
			case r.refused:
			case r.replayed == len(r.orders):
				i.result.Replayed++
			default:
				i.result.Imported++
			}
		}
	}
	if i.options.Progress != nil {
		i.options.Progress(i.result.Imported + i.result.Replayed + i.result.Failed)
	}
	return nil
}

// step dispatches one command of each row. What the service could not answer is
// sent again: the command's key makes it the same command.
func (i *importer) step(step int, rows []*row) error {
	for try := 1; len(rows) > 0; try++ {
		orders := make([]client.Order, len(rows))
		for n, r := range rows {
			orders[n] = r.orders[step]
		}
		var again []*row
		answered := 0
		err := i.client.Batch(i.ctx, orders, func(n int, a client.Answer) {
			answered = n + 1
			switch r := rows[n]; {
			case a.Problem == nil:
				if a.Replayed {
					r.replayed++
				}
			case a.Problem.Passes():
				again = append(again, r)
			default:
				r.refused = true
				i.refuse(r.number, fmt.Errorf("%s: %w", r.orders[step].Command, a.Problem))
			}
		})
		if len(again) < answered {
			try = 1 // it moves
		}
		rows = append(again, rows[answered:]...)
		if len(rows) == 0 {
			break
		}
		if p, ok := errors.AsType[*client.Problem](err); ok && !p.Passes() || try == tries || i.ctx.Err() != nil {
			return i.gaveUp(rows[0].number, err)
		}
		if err := parts.Pause(i.ctx, time.Duration(try)*150*time.Millisecond); err != nil {
			return i.gaveUp(rows[0].number, err)
		}
	}
	return nil
}

func (i *importer) gaveUp(number int, err error) error {
	if err == nil {
		err = errors.New("the service is too busy to answer")
	}
	return fmt.Errorf("import row %d and what follows: %w (the same import again is safe: nothing is imported twice)", number, err)
}
