package imports

import (
	"bufio"
	"bytes"
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
	Rows     int // lines that are not blank
	Imported int
	Replayed int // had been imported before
	Failed   int
}

// RowError says why a row was refused.
type RowError struct {
	Row int // number of the line, from 1
	Err error
}

func (e RowError) Error() string { return fmt.Sprintf("row %d: %v", e.Row, e.Err) }

// Options of an import.
type Options struct {
	// Refused is told of every row that is refused. Nil: nobody is.
	Refused func(RowError)
	// Progress is told how many rows are behind us. Nil: nobody is.
	Progress func(rows int)
}

const (
	chunk    = 500     // rows of one request
	lineMost = 1 << 20 // bytes of a line
	tries    = 8       // in a row that get no answer from a service which is away
)

// Run imports the rows that in holds. The error is about the import as a whole,
// such as a service that is away; refused rows are counted.
func Run(ctx context.Context, c *client.Client, in io.Reader, o Options) (Result, error) {
	i := importer{ctx: ctx, client: c, options: o}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), lineMost)
	number := 0
	for lines.Scan() {
		number++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		i.result.Rows++
		r, err := parse(number, line)
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
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("the line is longer than %d bytes", lineMost)
		}
		return i.result, RowError{number + 1, err}
	}
	return i.result, i.send()
}

type importer struct {
	ctx     context.Context
	client  *client.Client
	options Options
	rows    []*row // not sent yet
	result  Result
}

func (i *importer) refuse(number int, err error) {
	i.result.Failed++
	if i.options.Refused != nil {
		i.options.Refused(RowError{number, err})
	}
}

// send imports the rows at hand.
func (i *importer) send() error {
	rows := i.rows
	i.rows = nil
	for step := range steps {
		var err error
		if rows, err = i.step(step, rows); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if r.replayed[0] && r.replayed[1] {
			i.result.Replayed++
		} else {
			i.result.Imported++
		}
	}
	if i.options.Progress != nil {
		i.options.Progress(i.result.Imported + i.result.Replayed + i.result.Failed)
	}
	return nil
}

// step dispatches one command of each row and returns the rows that go on.
// What the service could not answer is sent again: the command's key makes it
// the same command.
func (i *importer) step(step int, rows []*row) (done []*row, err error) {
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
				r.replayed[step] = a.Replayed
				done = append(done, r)
			case a.Problem.Passes():
				again = append(again, r)
			default:
				i.refuse(r.number, fmt.Errorf("%s: %w", steps[step], a.Problem))
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
			return nil, i.gaveUp(rows[0].number, err)
		}
		if err := parts.Pause(i.ctx, time.Duration(try)*150*time.Millisecond); err != nil {
			return nil, i.gaveUp(rows[0].number, err)
		}
	}
	return done, nil
}

func (i *importer) gaveUp(number int, err error) error {
	if err == nil {
		err = errors.New("the service is too busy to answer")
	}
	return fmt.Errorf("import row %d and what follows: %w (the same import again is safe: nothing is imported twice)", number, err)
}
