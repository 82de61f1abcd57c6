package verify

import (
	"errors"
	"fmt"
	"io"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/archive"
)

// File checks an exported log without a database: the file's own sums and
// trailer, chains, versions, positions, and what the events fold to. It keeps
// every customer's fold in memory.
//
// A fault of the file itself ends the check: what follows cannot be trusted.
func File(from io.Reader, o Options) (Report, error) {
	t := &tally{options: o}
	r, err := archive.Open(from)
	if err != nil {
		return t.broken(err)
	}
	t.total = r.Header().Events
	codec := eventstore.Current()
	a := newAuditor(t)
	part := r.Header().Part
	a.chain.Part = part != nil && part.From > 1
	pending := int64(0)
	for r.Next() {
		switch v := r.Line().(type) {
		case eventstore.Recorded:
			for _, r := range codec.AppendDecoded(nil, v) {
				if a.chain.Part { // folds need their beginnings
					a.chainOnly(r)
				} else {
					a.follow(r)
				}
			}
			if pending++; pending == progressEvery {
				t.read(pending)
				pending = 0
			}
		case archive.CommandKey:
			if head := a.chain.Head(v.Stream); v.LastVersion > head.Version {
				t.found(Difference{KindKey, "command " + string(v.Key), fmt.Sprintf("it made version %d of %s, which ends at %d", v.LastVersion, v.Stream, head.Version),
					"the end of the stream is missing: export again from a log that is whole"})
			}
		}
	}
	t.read(pending)
	t.report.Streams = int64(a.chain.Streams())
	if r.Err() != nil {
		return t.broken(r.Err())
	}
	return t.report, nil
}

// progressEvery is how many events pass between two words about progress.
const progressEvery = 1000

// broken ends the check of a file: by a difference if the file is to blame.
func (t *tally) broken(err error) (Report, error) {
	fault, ok := errors.AsType[*archive.Fault](err)
	if !ok {
		return t.report, fmt.Errorf("verify: %w", err)
	}
	t.found(Difference{KindFile, fmt.Sprintf("line %d", fault.Line), fault.Detail, "take another copy of the file, or export again"})
	return t.report, nil
}

// chainOnly checks an event of a part of a log.
func (a *auditor) chainOnly(r eventstore.Recorded) {
	about := fmt.Sprintf("%s version %d at %s", r.Stream, r.Version, r.Place)
	if r.Part == 0 {
		for _, f := range a.chain.Follow(r) {
			a.found(Difference{string(f.Kind), about, f.Detail, ofTheLog})
		}
	}
	if r.Event == nil {
		a.found(Difference{KindUnknown, about, r.Err.Error(), "run the version that wrote it"})
	}
}
