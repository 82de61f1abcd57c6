package tracking

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
)

const everyPartition = math.MaxUint64

// heardEvery bounds the scans that notifications cause.
const heardEvery = 5 * time.Millisecond

// scanner finds what has to be done: every Poll in all partitions, which is
// the truth, and at once in those that were heard of.
func (r *Runtime) scanner(ctx context.Context, heard <-chan uint64) {
	ahead := map[string]bool{}
	away := false
	look(ctx, r.poll, heard, func(partitions uint64, thorough bool) {
		err := r.scan(ctx, partitions, thorough, ahead)
		if err != nil && ctx.Err() == nil && !away {
			r.log.Warn("scan failed; events wait until the next one that succeeds", "error", err)
		}
		away = err != nil
	})
}

// look scans every poll, and what was heard of at once, until ctx ends.
func look(ctx context.Context, poll time.Duration, heard <-chan uint64, scan func(partitions uint64, thorough bool)) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		partitions, thorough := uint64(everyPartition), true
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case partitions = <-heard:
			thorough = partitions == everyPartition
		}
		scan(partitions, thorough)
		if !thorough {
			pause(ctx, heardEvery)
		}
	}
}

func (r *Runtime) scan(ctx context.Context, partitions uint64, thorough bool, ahead map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	running := r.running()
	names, tokens := make([]string, len(running)), make(map[string]int, len(running))
	for i, p := range running {
		names[i] = p.Name
	}
	rows, err := r.pool.Query(ctx, scanSQL, names, partitionsIn(partitions))
	if err != nil {
		return err
	}
	var name string
	var count, beyond int
	var behind int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &count, &behind, &beyond}, func() error {
		tokens[name] = count
		if p, ok := r.processor(name); ok {
			p.ready.wake(uint64(behind), thorough)
			if beyond > 0 && !ahead[name] {
				p.log.Error("tokens are ahead of the log: was it restored without them? What is appended up to there will not be handled", "partitions", beyond)
			}
			ahead[name] = beyond > 0
		}
		return nil
	}); err != nil {
		return err
	}
	if partitions != everyPartition {
		return nil
	}
	for _, p := range running {
		if tokens[p.Name] < eventstore.Partitions {
			if err := r.makeTokens(ctx, p); err != nil {
				return err
			}
			p.ready.wake(everyPartition, true)
		}
	}
	return nil
}

// listen passes on what other processes announce. A notification only spares
// waiting for the scan; whatever is missed while the connection is away is
// found by it, and by the scan that follows each connect.
func (r *Runtime) listen(ctx context.Context, heard chan uint64, alive func()) {
	for n := 1; ctx.Err() == nil; n++ {
		connected, err := r.listenOnce(ctx, heard, alive)
		if ctx.Err() != nil {
			return
		}
		if connected {
			n = 1
		}
		r.log.Debug("not listening; connecting again", "error", err)
		pause(ctx, backoff(n))
	}
}

func (r *Runtime) listenOnce(ctx context.Context, heard chan uint64, alive func()) (connected bool, err error) {
	config := r.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return false, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if err := r.boot(ctx, conn); err != nil {
		r.log.Debug("the start of the process could not be written", "error", err)
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{eventstore.Channel}.Sanitize()); err != nil {
		return false, err
	}
	alive()
	tell(heard, everyPartition)
	r.heard(everyPartition)
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, err
		}
		if partitions := r.store.Heard(n.Payload); partitions != 0 {
			tell(heard, partitions)
			r.heard(partitions)
		}
	}
}

// tell leaves partitions for the scanner, with those that it has not fetched.
func tell(heard chan uint64, partitions uint64) {
	select {
	case earlier := <-heard:
		partitions |= earlier
	default:
	}
	heard <- partitions
}
