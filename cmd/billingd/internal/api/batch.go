package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// A batch is a stream of lines, each a command:
//
//	{"command": "register-customer", "key": "optional", "body": {…}}
//
// and is answered by a line for each, in the same order: a receipt, or a
// problem that leaves the other lines as they are. Either has the number of
// the line it answers; blank lines count and are not answered. Commands of one
// customer are decided in the order of their lines, others side by side.
const ndjson = "application/x-ndjson"

// Bounds of one batch under way, so that its memory does not depend on its
// length.
const (
	lanes     = 64  // commands decided side by side: what waits together shares a commit
	laneDepth = 4   // commands waiting in a lane
	ahead     = 512 // lines read before their answers are written
)

// lineAnswer is one line of the answer: one of the two, with the line's number.
type lineAnswer struct {
	Line int `json:"line"`
	*Receipt
	*Problem
}

// job is a line on its way to its answer.
type job struct {
	line   int
	order  order
	done   chan struct{}
	answer lineAnswer
}

func (s *Server) registerBatch() {
	op := operation("commands-batch", http.MethodPost, "/v1/commands:batch", tagCommands, "Dispatch many commands", access.Dispatch)
	op.Description = "One JSON object a line: `{\"command\": …, \"key\": …, \"body\": {…}}`, where `key` takes the place of the Idempotency-Key header and may be left out. " +
		"The answer has a line for each, in the same order and as soon as it is known: a Receipt or a Problem, with `line` beside its fields. " +
		"A line that is refused leaves the others as they are; one whose command needs another scope than the batch is refused without it. Read the answer while you send."
	lines := &huma.Schema{Type: huma.TypeString, Description: "Newline-delimited JSON."}
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{ndjson: {Schema: lines}}}
	op.Responses = map[string]*huma.Response{
		"200":     {Description: "A line for each line.", Content: map[string]*huma.MediaType{ndjson: {Schema: lines}}},
		"default": s.problemResponse(),
	}
	s.handle(op, s.serveBatch)
}

func (s *Server) serveBatch(w http.ResponseWriter, r *http.Request) error {
	if len(r.Header.Values(idempotencyHeader)) > 0 {
		return domain.InvalidField(idempotencyHeader, "is not for batches; each line has a key of its own")
	}
	if err := checkContent(r, ndjson); err != nil {
		return err
	}
	control := http.NewResponseController(w)
	_ = control.EnableFullDuplex() // HTTP/2 always is
	x := exchangeOf(r.Context())
	lines := newLineReader(r.Body, s.limits.Body, func() { _ = control.SetReadDeadline(time.Now().Add(s.limits.BodyTime)) })
	line, err := lines.next()
	switch {
	case errors.Is(err, io.EOF):
		return domain.InvalidField("body", "is empty")
	case err != nil && !errors.Is(err, errLongLine):
		return s.bodyProblem(err)
	}

	b := &batch{s: s, x: x, ctx: r.Context(), pending: make(chan *job, ahead), abandoned: make(chan struct{})}
	w.Header().Set("Content-Type", ndjson)
	written := make(chan struct{})
	go func() {
		defer close(written)
		b.write(w, control)
	}()
	b.work()
	for !errors.Is(err, io.EOF) && b.take(lines.number, line, err) {
		line, err = lines.next()
	}
	_ = control.SetReadDeadline(time.Time{})
	b.finish()
	<-written
	x.attrs = append(x.attrs, slog.Int("lines", b.lines), slog.Int("failed", b.failed))
	return nil
}

// batch is a batch under way.
type batch struct {
	s       *Server
	x       *exchange
	ctx     context.Context
	pending chan *job // in the order of their lines
	lanes   [lanes]chan *job
	working sync.WaitGroup

	abandoned     chan struct{} // closed when the caller has stopped reading
	lines, failed int           // the writer's, until it has ended
}

// work starts a dispatcher for each lane.
func (b *batch) work() {
	for i := range b.lanes {
		b.lanes[i] = make(chan *job, laneDepth)
		b.working.Go(func() {
			for j := range b.lanes[i] {
				receipt, err := b.dispatch(j.order)
				if err != nil {
					b.fail(j, err)
					continue
				}
				j.answer = lineAnswer{Line: j.line, Receipt: &receipt}
				close(j.done)
			}
		})
	}
}

func (b *batch) dispatch(o order) (r Receipt, err error) {
	defer b.recovered(&err)
	return b.s.dispatch(b.ctx, o)
}

// recovered makes a panic the answer to its line.
func (b *batch) recovered(err *error) {
	if v := recover(); v != nil {
		*err = b.s.panicked(b.x, v)
	}
}

// take gives a line to its lane. It reports false if nothing can follow it.
func (b *batch) take(number int, line []byte, err error) (more bool) {
	j := &job{line: number, done: make(chan struct{})}
	select {
	case b.pending <- j:
	case <-b.abandoned:
		return false
	}
	if err != nil {
		b.fail(j, b.s.lineProblem(err))
		return errors.Is(err, errLongLine)
	}
	if b.s.isDraining() {
		p := problem(http.StatusServiceUnavailable, "shutting_down", "the service is stopping; this line and those after it were not read")
		b.fail(j, p)
		return false
	}
	j.order, err = b.prepare(line)
	if err != nil {
		b.fail(j, err)
		return true
	}
	h := fnv.New32a()
	h.Write([]byte(j.order.request.Stream()))
	b.lanes[h.Sum32()%lanes] <- j
	return true
}

func (b *batch) prepare(line []byte) (o order, err error) {
	defer b.recovered(&err)
	l, err := parseLine(line)
	if err != nil {
		return order{}, err
	}
	spec, err := commands.Lookup(l.command)
	if err != nil {
		return order{}, err
	}
	now, err := b.s.clock(b.ctx)
	if err != nil {
		return order{}, err
	}
	return b.s.prepare(spec, l.key, l.body, now, b.x)
}

// fail answers a line with the problem that err is.
func (b *batch) fail(j *job, err error) {
	p := *problemOf(err)
	p.RequestID = b.x.id
	if p.cause != nil {
		b.s.log.Warn("a line of a batch failed", "request_id", p.RequestID, "line", j.line, "code", p.Code, "error", p.cause)
	}
	j.answer = lineAnswer{Line: j.line, Problem: &p}
	close(j.done)
}

// finish waits for what is under way.
func (b *batch) finish() {
	for _, lane := range b.lanes {
		close(lane)
	}
	b.working.Wait()
	close(b.pending)
}

// write answers line by line. Before it waits for anything, it sends what it
// has. If the caller stops reading, what was read from it is finished all the
// same.
func (b *batch) write(w http.ResponseWriter, control *http.ResponseController) {
	out := bufio.NewWriterSize(w, 32<<10)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	broken := false
	check := func(err error) {
		if err != nil && !broken {
			broken = true
			close(b.abandoned)
			_ = control.SetReadDeadline(time.Now()) // no more lines
		}
	}
	send := func() {
		if !broken && out.Buffered() > 0 {
			check(out.Flush())
			check(control.Flush())
		}
	}
	for j := range ready(b.pending, send) {
		if !isClosed(j.done) {
			send()
			<-j.done
		}
		b.lines++
		if j.answer.Problem != nil {
			b.failed++
		}
		if !broken {
			check(encoder.Encode(j.answer))
		}
	}
	send()
}

// ready ranges over a channel and calls idle before it waits for it.
func ready[T any](c <-chan T, idle func()) iter.Seq[T] {
	return func(yield func(T) bool) {
		for {
			var v T
			var open bool
			select {
			case v, open = <-c:
			default:
				idle()
				v, open = <-c
			}
			if !open || !yield(v) {
				return
			}
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *Server) lineProblem(err error) error {
	if errors.Is(err, errLongLine) {
		return problem(http.StatusRequestEntityTooLarge, "line_too_long", "a line must not exceed %d bytes", s.limits.Body)
	}
	return s.bodyProblem(err)
}
