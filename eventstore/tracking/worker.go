package tracking

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/billonce/billonce/eventstore"
)

// worker handles pages of one processor, one after the other. It stands on
// both sides of a watermill-sql subscriber: the subscriber begins its
// transactions here (wsql.Beginner), reports here when each is over
// (wsql.BackoffManager), and is handed to the router by here
// (message.Subscriber).
//
// The router and the subscriber take turns on a page and meet over channels,
// so the unit of work needs no lock of its own.
type worker struct {
	runtime    *Runtime
	processor  *processor
	db         *sql.DB
	subscriber *wsql.Subscriber
	stopping   context.Context // of the Run that it belongs to
	idleLimit  string          // for idle_in_transaction_session_timeout

	mu   sync.Mutex
	unit *unit // the page under way; the lock is for whoever cuts it

	drained  chan struct{} // closed when no further page will begin
	draining sync.Once
	closing  sync.Once
}

var (
	_ wsql.Beginner       = (*worker)(nil)
	_ wsql.BackoffManager = (*worker)(nil)
	_ message.Subscriber  = (*worker)(nil)
)

// forever is the subscriber's deadline for a handler. It would commit what is
// half done, so ours (Processor.Timeout) has to come first.
const forever = 24 * time.Hour

func newWorker(ctx context.Context, r *Runtime, p *processor, db *sql.DB, log watermill.LoggerAdapter) (*worker, error) {
	w := &worker{runtime: r, processor: p, db: db, stopping: ctx, drained: make(chan struct{})}
	w.idleLimit = fmt.Sprintf("%dms", (p.Timeout + 5*time.Second).Milliseconds())
	deadline := forever
	subscriber, err := wsql.NewSubscriber(w, wsql.SubscriberConfig{
		ConsumerGroup:  p.Name,
		AckDeadline:    &deadline,
		BackoffManager: w,
		SchemaAdapter:  topic{w},
		OffsetsAdapter: topic{w},
	}, log)
	if err != nil {
		return nil, fmt.Errorf("processor %q: %w", p.Name, err)
	}
	w.subscriber = subscriber
	return w, nil
}

// attach makes w a handler of the router.
func (w *worker) attach(router *message.Router, name string) {
	h := router.AddConsumerHandler(name, eventstore.Topic, w, func(msg *message.Message) error { return w.handle(msg.Context()) })
	h.AddMiddleware(w.unitOfWork, middleware.Timeout(w.processor.Timeout), middleware.Recoverer)
}

// unitOfWork keeps a page whole. If anything inside fails, the transaction is
// rolled back here and the message acknowledged all the same: a refusal would
// make the subscriber send it again into the same dead transaction. The
// acknowledgement fails on it, and HandleError hears why.
func (w *worker) unitOfWork(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		_, err := next(msg)
		if err != nil {
			w.unit.timedOut = errors.Is(msg.Context().Err(), context.DeadlineExceeded)
			w.unit.rollback(err)
		}
		return nil, nil
	}
}

// BeginTx waits until there is something to do, and only then takes a
// connection: a worker that waits holds nothing.
func (w *worker) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	offered, thorough, ok := w.processor.ready.take(w.processor.Partitions)
	if !ok {
		w.draining.Do(func() { close(w.drained) })
		return nil, errStopping
	}
	u := &unit{offered: offered, thorough: thorough, started: time.Now()}
	w.set(u)
	if w.processor.careful() {
		select {
		case w.runtime.alone <- struct{}{}:
			u.alone = true
		case <-w.stopping.Done():
			return nil, errStopping
		}
	}
	select {
	case w.runtime.busy <- struct{}{}:
		u.slot = true
	case <-w.stopping.Done():
		return nil, errStopping
	}

	// The context may end the wait for a connection, but not a transaction that
	// has begun: database/sql would roll it back under the handler's feet.
	ctx, cancel := context.WithCancel(u.context(context.WithoutCancel(ctx)))
	disarm := context.AfterFunc(w.stopping, cancel)
	tx, err := w.db.BeginTx(ctx, opts)
	if !disarm() && err == nil {
		_ = tx.Rollback()
		err = errStopping
	}
	if err != nil {
		cancel()
		return nil, err
	}
	u.sqlTx, u.release = tx, cancel
	return tx, nil
}

// HandleError hears that a unit of work is over, well or badly. It never asks
// the subscriber to wait: the waiting is done in BeginTx.
func (w *worker) HandleError(_ watermill.LoggerAdapter, _ bool, err error) time.Duration {
	u := w.set(nil)
	if u == nil {
		return 10 * time.Millisecond // stopping; the subscriber is being told
	}
	if u.release != nil {
		u.release()
	}
	if u.slot {
		<-w.runtime.busy
	}
	if u.alone {
		defer func() { <-w.runtime.alone }()
	}
	if u.failure != nil {
		err = u.failure
	}
	if err == nil {
		err = u.outcome() // the subscriber only logs a commit that fails
	}
	if err != nil {
		w.failed(u, err)
	} else {
		w.succeeded(u)
	}
	var took time.Duration
	if len(u.slices) > 0 {
		took = time.Since(u.started)
	}
	w.processor.ready.done(u.offered, u.more, took)
	return 0
}

func (w *worker) set(u *unit) (former *unit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	former, w.unit = w.unit, u
	return former
}

// succeeded tells the world about a page that has committed.
func (w *worker) succeeded(u *unit) {
	p := w.processor
	if len(u.slices) == 0 {
		return
	}
	p.metrics.page(p, u)
	for _, s := range u.slices {
		p.recovered(s.claim.Partition)
		if s.stop == nil {
			continue
		}
		p.ready.hold(s.claim.Partition, stopPause)
		if s.stop.at.Partition == s.claim.Partition {
			p.metrics.failures.WithLabelValues(p.Name, "unknown_event").Inc()
			p.log.Error("the processor does not know an event and waits for a build that does", "place", s.stop.at.String(), "error", s.stop.cause)
		}
	}
	for _, l := range u.letters {
		if l.Status == Parked {
			p.log.Error("an event could not be handled; its sequence is parked until an operator retries or skips it",
				"sequence_key", l.SequenceKey, "place", l.Place.String(), "event_type", l.EventType, "attempts", l.Attempts, "error", l.Error)
		}
	}
	if u.page != nil {
		w.runtime.announce(p, u.page)
	}
	p.moved()
}

// stopPause is how long a partition rests before an event that this build does
// not know. Another replica, with a newer build, need not wait.
const stopPause = 10 * time.Second

// Subscribe implements message.Subscriber. When ctx ends, the page under way
// is finished first; the subscriber itself would commit half of it.
func (w *worker) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	context.AfterFunc(ctx, func() { _ = w.Close() })
	return w.subscriber.Subscribe(context.WithoutCancel(ctx), topic)
}

// Close implements message.Subscriber. It returns when the page under way is done.
func (w *worker) Close() error {
	w.processor.ready.stop()
	<-w.drained
	w.closing.Do(func() { _ = w.subscriber.Close() }) // it never fails, and must not be closed twice
	return nil
}

// cut breaks the connection of the page under way, if there is one.
func (w *worker) cut() {
	w.mu.Lock()
	u := w.unit
	w.mu.Unlock()
	if u != nil {
		u.cut()
	}
}

var errUnused = errors.New("tracking: the subscriber only begins transactions")

// The rest of wsql.Beginner; the subscriber never calls it.

func (*worker) Exec(string, ...any) (sql.Result, error) { return nil, errUnused }
func (*worker) Query(string, ...any) (*sql.Rows, error) { return nil, errUnused }
func (*worker) QueryRow(string, ...any) *sql.Row        { return nil }
func (*worker) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	return nil, errUnused
}
func (*worker) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, errUnused
}
func (*worker) QueryRowContext(context.Context, string, ...any) *sql.Row { return nil }
