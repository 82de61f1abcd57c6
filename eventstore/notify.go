package eventstore

import (
	"context"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Channel is the NOTIFY channel. The payload is a mask of partitions in hex, and
// after a space the sender's name if it is an open log; see [Store.Heard].
const Channel = "events"

// notifyEvery bounds the notifications of a process: NOTIFY takes a lock that
// serialises the server's commits, so many appends share one. What comes after a
// pause of that length is announced at once.
const notifyEvery = 5 * time.Millisecond

// notifier tells subscribers of this process at once, and other processes in a
// transaction of its own, at most every few milliseconds.
type notifier struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	name string // of this sender

	mu          sync.Mutex
	subscribers map[int]func(Growth)
	next        int
	pending     uint64
	sent        time.Time // when the last notification left
	closed      bool
	sending     sync.WaitGroup
}

func newNotifier(pool *pgxpool.Pool, log *slog.Logger) *notifier {
	return &notifier{pool: pool, log: log, name: uuid.NewString(), subscribers: map[int]func(Growth){}}
}

func (n *notifier) subscribe(f func(Growth)) (cancel func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := n.next
	n.next++
	n.subscribers[id] = f
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.subscribers, id)
	}
}

func (n *notifier) announce(added Growth) {
	mask := added.Partitions()
	if mask == 0 {
		return
	}
	n.mu.Lock()
	first := n.pending == 0
	n.pending |= mask
	tell := make([]func(Growth), 0, len(n.subscribers))
	for _, f := range n.subscribers {
		tell = append(tell, f)
	}
	if first && !n.closed {
		n.sending.Add(1)
		time.AfterFunc(notifyEvery-time.Since(n.sent), n.send)
	}
	n.mu.Unlock()
	for _, f := range tell {
		f(added)
	}
}

func (n *notifier) send() {
	defer n.sending.Done()
	n.mu.Lock()
	mask := n.pending
	n.pending, n.sent = 0, time.Now()
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	// Nobody waits for the disk: a notification that a crash loses is made up for
	// by the readers' scan.
	if _, err := n.pool.Exec(ctx, `SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)`, Channel, strconv.FormatUint(mask, 16)+" "+n.name); err != nil {
		n.log.Debug("notify failed; readers will find the events by their scan", "error", err)
	}
}

// heard is what a notification tells that this process does not know.
func (n *notifier) heard(payload string) uint64 {
	text, sender, _ := strings.Cut(payload, " ")
	if sender == n.name {
		return 0
	}
	mask, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return math.MaxUint64 // not ours, or newer than we are: look everywhere
	}
	return mask
}

func (n *notifier) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.sending.Wait()
}
