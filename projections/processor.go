package projections

import (
	"context"
	"time"

	"github.com/billonce/billonce/eventstore/tracking"
)

// A page holds up to two thousand facts of any number of partitions: under a backlog
// the fewer commits the better, and no page waits for another.
const (
	pageSize       = 2000
	pagePartitions = 64
)

// pace gathers what comes in while a month is being charged into at most fifty
// commits a second. A lone fact is folded at once.
const pace = 200 * time.Millisecond

// Processor is the projection as a tracking processor: pure, so that it may be
// reset and replayed at any time.
func (p Projection) Processor() tracking.Processor {
	return tracking.Processor{
		Name:       p.Name,
		Kind:       tracking.Pure,
		Events:     p.Events,
		PageSize:   pageSize,
		Partitions: pagePartitions,
		Pace:       pace,
		Handler:    tracking.HandlerFunc(func(ctx context.Context, page *tracking.Page) error { return p.Fold(ctx, page.Tx, page.Events) }),
		Reset:      p.Reset,
	}
}
