package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
)

// processorsCommand is about the readers of the log.
type processorsCommand struct {
	List   listProcessors  `cmd:"" help:"Print how far each has come."`
	Show   showProcessor   `cmd:"" help:"Print how far one has come in each partition."`
	Pause  pauseProcessor  `cmd:"" help:"Stop one, in all replicas, until it is resumed."`
	Run    runProcessor    `cmd:"" help:"Let one run up to a position and stop there."`
	Resume resumeProcessor `cmd:"" help:"Let one go on that is paused or has stopped at a position."`
	Reset  resetProcessor  `cmd:"" help:"Empty the tables of a read model and let it read the log again. See also replay."`
}

type (
	listProcessors struct{}
	showProcessor  struct {
		Name string `arg:"" help:"Name of the processor."`
	}
	pauseProcessor struct {
		Name   string `arg:"" help:"Name of the processor."`
		Reason string `required:"" help:"Why, for whoever reads the record later." placeholder:"TEXT"`
	}
	resumeProcessor struct {
		Name   string `arg:"" help:"Name of the processor."`
		Reason string `required:"" help:"Why, for whoever reads the record later." placeholder:"TEXT"`
	}
	resetProcessor struct {
		Name   string `arg:"" help:"Name of the read model."`
		Reason string `required:"" help:"Why, for whoever reads the record later." placeholder:"TEXT"`
	}
)

// processors reads how all processors stand.
func (s *shell) processors() (json.RawMessage, error) {
	c, err := s.client()
	if err != nil {
		return nil, err
	}
	return c.Get(s.ctx, "/v1/processors", nil)
}

type processorPage struct {
	Items []tracking.ProcessorStatus `json:"items"`
}

// Run prints the list.
func (listProcessors) Run(s *shell) error {
	document, err := s.processors()
	if err != nil {
		return err
	}
	return show(s, document, func(page processorPage) error {
		table := console.NewTable("processor", "caught up", "events behind#", "seconds behind#", "events/s#", "parked#", "state", "last error")
		for _, p := range page.Items {
			table.Row(p.Processor, p.CaughtUp, p.BehindEvents, fmt.Sprintf("%.1f", p.BehindSeconds), fmt.Sprintf("%.0f", p.EventsPerSecond), p.Parked, stateOf(p), p.LastError)
		}
		if err := table.Write(s.Out, ""); err != nil {
			return err
		}
		for _, p := range page.Items {
			if err := s.passedOver(p); err != nil {
				return err
			}
		}
		return nil
	})
}

// passedOver says what a tolerant processor lacks.
func (s *shell) passedOver(p tracking.ProcessorStatus) error {
	for _, q := range p.PassedOver {
		if err := s.printf("%s passed over %s of the events %s, schema version %d, which its build did not know, from %s to %s: replay it with a build that does\n",
			p.Processor, console.Count(int(q.Events)), q.Type, q.SchemaVersion, q.First, q.Last); err != nil {
			return err
		}
	}
	return nil
}

func stateOf(p tracking.ProcessorStatus) string {
	switch {
	case p.Paused:
		return "paused"
	case p.Stopped:
		return fmt.Sprintf("stopped at %d", p.StopAt)
	case p.StopAt > 0:
		return fmt.Sprintf("runs to %d", p.StopAt)
	case p.Replaying:
		return "replaying"
	}
	return "running"
}

// Run prints the partitions.
func (p showProcessor) Run(s *shell) error {
	document, err := s.processors()
	if err != nil {
		return err
	}
	var raw struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(document, &raw); err != nil {
		return fmt.Errorf("read the answer of billingd: %w", err)
	}
	for _, item := range raw.Items {
		var status tracking.ProcessorStatus
		if err := json.Unmarshal(item, &status); err != nil {
			return fmt.Errorf("read the answer of billingd: %w", err)
		}
		if status.Processor == p.Name {
			return show(s, item, func(status tracking.ProcessorStatus) error { return showPartitions(s, status) })
		}
	}
	return tracking.ErrUnknownProcessor
}

func showPartitions(s *shell, p tracking.ProcessorStatus) error {
	if err := s.printf("%s is %s: %s events and %.1f s behind, %d customers parked\n\n", p.Processor, stateOf(p), console.Count(int(p.BehindEvents)), p.BehindSeconds, p.Parked); err != nil {
		return err
	}
	if err := s.passedOver(p); err != nil {
		return err
	}
	table := console.NewTable("partition#", "token#", "newest#", "events behind#", "seconds behind#", "events/s#", "attempts#", "moved at", "owner", "last error")
	for _, t := range p.Partitions {
		table.Row(t.Partition, t.Token, t.Newest, t.BehindEvents, fmt.Sprintf("%.1f", t.BehindSeconds), fmt.Sprintf("%.1f", t.EventsPerSecond), t.Attempts, t.UpdatedAt.UTC().Format("2006-01-02 15:04:05"), t.Owner, t.LastError)
	}
	return table.Write(s.Out, "")
}

// operate runs a change on the service's database and says that it is done.
func (s *shell) operate(done string, change func(*pgxpool.Pool) error) error {
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := change(pool); err != nil {
		return err
	}
	return s.done("%s", done)
}

// Run pauses the processor.
func (p pauseProcessor) Run(s *shell) error {
	return s.operate(p.Name+" is paused", func(pool *pgxpool.Pool) error { return tracking.Pause(s.ctx, pool, p.Name, actor(), p.Reason) })
}

// Run resumes the processor.
func (p resumeProcessor) Run(s *shell) error {
	return s.operate(p.Name+" goes on", func(pool *pgxpool.Pool) error { return tracking.Resume(s.ctx, pool, p.Name, actor(), p.Reason) })
}

// Run resets the read model.
func (p resetProcessor) Run(s *shell) error {
	return s.operate(p.Name+" is empty and reads the log again", func(pool *pgxpool.Pool) error {
		processor, err := pure(s.ctx, pool, p.Name)
		if err != nil {
			return err
		}
		return tracking.Reset(s.ctx, pool, processor, 0, actor(), p.Reason)
	})
}

// pure finds a read model's processor. Of the other processors it says why
// they are not reset.
func pure(ctx context.Context, pool *pgxpool.Pool, name string) (tracking.Processor, error) {
	projection, err := projections.Named(name)
	if err == nil {
		return projection.Processor(), nil
	}
	known, statusErr := tracking.Status(ctx, pool, name)
	if statusErr != nil {
		return tracking.Processor{}, statusErr
	}
	if slices.ContainsFunc(known, func(p tracking.ProcessorStatus) bool { return p.Processor == name && !neverRan(p) }) {
		return tracking.Processor{}, tracking.ErrEffectful.With("processor %q is effectful; it is reset only through a plan: billingctl saga plan %s", name, name)
	}
	return tracking.Processor{}, usageError{err}
}

// neverRan reports whether a status is that of a processor without any token.
func neverRan(p tracking.ProcessorStatus) bool {
	return !slices.ContainsFunc(p.Partitions, func(t tracking.PartitionStatus) bool { return !t.Missing })
}

// stalled is how long something may stand still before it is said to hang.
const stalled = 30 * time.Second
