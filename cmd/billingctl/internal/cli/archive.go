package cli

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/archive"
	"github.com/billonce/billonce/projections"
)

// exportCommand writes the log to a file.
type exportCommand struct {
	File   string `arg:"" optional:"" help:"Where to; standard output if it is left out." default:"-"`
	Stream string `help:"One stream or customer alone. Such a part can be checked, and not imported." placeholder:"STREAM"`
	From   string `help:"From this position or place on, such as 40213 or 17-40213. Such a part can be checked, and not imported." placeholder:"POSITION"`
}

// Help is what events export --help says beyond the flags.
func (exportCommand) Help() string {
	return `NDJSON: a header, every event in the order of positions with the exact bytes of its payload and metadata, the remembered keys of commands and requests, and a trailer with counts and a SHA-256. It is the log as it was at one moment; the service may run.

billingctl verify --export FILE checks it anywhere, billingctl events import builds the log again. The last line, on standard error if the file is standard output:

    export: events=12000 command_keys=9000 request_keys=40 last_position=12007 sha256=…`
}

// exportBuffer gathers lines into writes.
const exportBuffer = 256 << 10

// Run exports.
func (e exportCommand) Run(s *shell) error {
	what := archive.Selection{}
	if e.Stream != "" {
		what.Stream = domain.StreamID(streamOf(e.Stream))
	}
	if e.From != "" {
		place, err := eventstore.ParsePlace(e.From)
		what.From = place.Position
		if err != nil {
			if what.From, err = strconv.ParseInt(e.From, 10, 64); err != nil || what.From < 1 {
				return usage("--from must be a position such as 40213, or a place such as 17-40213")
			}
		}
	}
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	store := eventstore.New(pool, eventstore.Current(), slog.New(slog.DiscardHandler))
	defer store.Close()
	var bar *console.Bar
	what.Progress = func(done, total int64) {
		if bar == nil {
			bar = s.progress().Start("exporting", "lines", int(total))
		}
		bar.Set(int(done))
	}
	var trailer archive.Trailer
	write := func(w io.Writer) error {
		buffered := bufio.NewWriterSize(w, exportBuffer)
		if trailer, err = archive.Export(s.ctx, store, buffered, what); err != nil {
			return err
		}
		if e.Stream != "" && trailer.Events == 0 {
			return fmt.Errorf("there is no stream %s", what.Stream)
		}
		return buffered.Flush()
	}
	if e.File == "-" {
		err = write(s.Out)
		s = s.beside()
	} else {
		err = whole(e.File, write)
	}
	if bar != nil {
		bar.End()
	}
	if err != nil {
		return err
	}
	return s.conclude("export", append(trailerFigures(trailer), figure{"sha256", trailer.SHA256})...)
}

func trailerFigures(t archive.Trailer) []figure {
	return []figure{{"events", t.Events}, {"command_keys", t.CommandKeys}, {"request_keys", t.RequestKeys}, {"last_position", t.LastPosition}}
}

// whole writes a file under another name until it is durable.
func whole(name string, write func(io.Writer) error) error {
	partial := name + ".partial"
	file, err := os.Create(partial)
	if err != nil {
		return usageError{err}
	}
	defer os.Remove(partial) // of no effect once it is renamed
	defer file.Close()
	if err := write(file); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(partial, name); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// importLogCommand builds a log anew.
type importLogCommand struct {
	File string `arg:"" help:"An exported log; - for standard input."`
}

// Help is what events import --help says beyond the flags.
func (importLogCommand) Help() string {
	return `The database must be migrated (billingctl migrate) and new: without events, keys, rows or readers that have come anywhere. Sums, positions, versions, chains and the trailer are checked as the file streams; if anything is wrong its line is named, and nothing is written.

Start billingd afterwards. Its processors begin anew, commands answer from the imported keys, and before anything is collected Stripe is looked at: nobody is charged again. The last line:

    import: events=12000 command_keys=9000 request_keys=40 last_position=12007`
}

// Run imports.
func (i importLogCommand) Run(s *shell) error {
	file, err := s.file(i.File)
	if err != nil {
		return err
	}
	defer file.Close()
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	var bar *console.Bar
	trailer, err := archive.Import(s.ctx, pool, file, followers(), func(done, total int64) {
		if bar == nil {
			bar = s.progress().Start("importing", "lines", int(total))
		}
		bar.Set(int(done))
	})
	if bar != nil {
		bar.End()
	}
	if err != nil {
		return err
	}
	return s.conclude("import", trailerFigures(trailer)...)
}

// followers are the tables that follow from a log, and that no other log may
// have filled.
func followers() []string {
	tables := []string{"sagas", "subscription_schedule", "billing_records", "refund_records", "webhook_inbox", "dead_letters"}
	for _, p := range projections.All() {
		tables = append(tables, p.Tables...)
	}
	return tables
}
