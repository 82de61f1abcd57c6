package admin

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/domain"
)

const (
	lineMost     = 64 << 10
	lineTime     = 10 * time.Second // for the next of the body to arrive
	manifestTime = 10 * time.Minute // for all of it
	refusedShown = 100
)

// refusedLine is a line of a manifest that was not taken. The others are.
type refusedLine struct {
	Line     int    `json:"line"` // from 1, blank lines counted
	Customer string `json:"customer_id"`
	Period   string `json:"billing_period"`
	Code     string `json:"code"`
	Message  string `json:"message"`
}

// manifest registers the bills of a run: a line of JSON each, read while they
// arrive.
func (s *server) manifest(c call) (answer, error) {
	if err := checkContent(c.r, "application/x-ndjson"); err != nil {
		return answer{}, err
	}
	key, err := s.keyFor(c)
	if err != nil {
		return answer{}, err
	}
	if !key.Grant.Manifest {
		return answer{}, &problem{status: http.StatusConflict, code: "no_manifest", message: "the vault key was issued without a manifest", close: true}
	}
	select {
	case s.uploads <- struct{}{}:
		defer func() { <-s.uploads }()
	case <-c.r.Context().Done():
		return answer{}, c.r.Context().Err()
	}
	control := http.NewResponseController(c.w)
	_ = control.SetWriteDeadline(time.Time{}) // not every writer has deadlines
	end := time.Now().Add(manifestTime)
	in := &lines{in: bufio.NewReaderSize(c.r.Body, lineMost), arm: func() {
		_ = control.SetReadDeadline(earlier(time.Now().Add(lineTime), end))
	}}
	registered, err := s.ledger.Register(c.r.Context(), c.name, in.entries())
	_ = control.SetReadDeadline(time.Time{})
	if in.broken != nil {
		return answer{}, bodyProblem(in.broken)
	}
	if err != nil {
		return answer{}, fmt.Errorf("register the manifest of vault key %s: %w", c.name, err)
	}
	v := viewRegistered(registered, in)
	s.note(c, "a manifest was registered", c.name, slog.Int("received", v.Received), slog.Int("new", v.New), slog.Int("changed", v.Changed), slog.Int("refused", v.RefusedCount))
	return ok(v), nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// lines reads a manifest line by line.
type lines struct {
	in     *bufio.Reader
	arm    func()
	number int
	// What cannot be read is refused here, and the ledger does not see it.
	refused      []refusedLine
	refusedCount int
	broken       error // the connection's

	passed  int      // entries that the ledger has seen
	offsets []offset // where its count of entries and the lines' part
}

// offset is by how much a line's number exceeds its entry's, from an entry on.
type offset struct{ entry, by int }

// entries are the lines that can be read. An error ends them: half a manifest
// is none.
func (l *lines) entries() iter.Seq2[ledger.Entry, error] {
	return func(yield func(ledger.Entry, error) bool) {
		for {
			line, err := l.next()
			switch {
			case errors.Is(err, io.EOF):
				return
			case errors.Is(err, errLongLine):
				l.refuse(refusedLine{Line: l.number, Code: "line_too_long", Message: fmt.Sprintf("the line must not exceed %d bytes", lineMost)})
				continue
			case err != nil:
				l.broken = err
				yield(ledger.Entry{}, err)
				return
			}
			e, refusal := l.parse(line)
			if refusal != nil {
				l.refuse(*refusal)
				continue
			}
			l.pass()
			if !yield(e, nil) {
				return
			}
		}
	}
}

// pass counts an entry that the ledger sees.
func (l *lines) pass() {
	l.passed++
	by, known := l.number-l.passed, 0
	if n := len(l.offsets); n > 0 {
		known = l.offsets[n-1].by
	}
	if by != known {
		l.offsets = append(l.offsets, offset{l.passed, by})
	}
}

// lineOf is the line of the ledger's entry-th entry.
func (l *lines) lineOf(entry int) int {
	i, found := slices.BinarySearchFunc(l.offsets, entry, func(o offset, e int) int { return o.entry - e })
	if !found {
		i--
	}
	if i < 0 {
		return entry
	}
	return entry + l.offsets[i].by
}

func (l *lines) refuse(r refusedLine) {
	if l.refusedCount++; len(l.refused) < refusedShown {
		l.refused = append(l.refused, r)
	}
}

var errLongLine = errors.New("the line is too long")

// next is the next line that is not blank.
func (l *lines) next() ([]byte, error) {
	for {
		l.arm()
		line, err := l.in.ReadSlice('\n')
		long := false
		for errors.Is(err, bufio.ErrBufferFull) {
			long = true
			l.arm()
			line, err = l.in.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) && len(line) == 0 && !long {
			return nil, io.EOF
		}
		l.number++
		switch {
		case err != nil && !errors.Is(err, io.EOF): // the last line needs no end
			return nil, err
		case long:
			return nil, errLongLine
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

// parse reads one line strictly.
func (l *lines) parse(line []byte) (ledger.Entry, *refusedLine) {
	o, err := parseObject(line)
	if err != nil {
		return ledger.Entry{}, &refusedLine{Line: l.number, Code: "invalid_input", Message: problemOf(err).message}
	}
	var customer, period, currency, stripe string
	var minor int64
	var e ledger.Entry
	if o.need("customer_id", "a string", &customer) {
		e.Bill.Customer, err = domain.ParseCustomerID(customer)
		o.accept("customer_id", err)
	}
	if o.need("billing_period", "a string", &period) {
		e.Bill.Period, err = domain.ParsePeriod(period)
		o.accept("billing_period", err)
	}
	if a, b := o.need("amount_minor", "a whole number of minor units", &minor), o.need("currency", "a string", &currency); a && b {
		e.Amount, err = domain.ParseMoney(minor, currency)
		o.accept("amount_minor", err)
	}
	if o.take("stripe_customer_id", "a string", &stripe) && stripe != "" {
		e.StripeCustomer, err = domain.ParseStripeID("stripe_customer_id", "cus_", stripe)
		o.accept("stripe_customer_id", err)
	}
	o.take("fixed", "true or false", &e.Fixed)
	o.take("withdrawn", "true or false", &e.Withdrawn)
	if err := o.done(); err != nil {
		r := &refusedLine{Line: l.number, Code: "invalid_input", Message: problemOf(err).message}
		r.Customer, r.Period = string(e.Bill.Customer), e.Bill.Period.String() // what is neither is not repeated
		return ledger.Entry{}, r
	}
	return e, nil
}
