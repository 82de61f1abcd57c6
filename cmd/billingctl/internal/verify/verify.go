package verify

import (
	"sync"
)

// The kinds of differences.
const (
	KindVersion   = "version"
	KindChain     = "chain"
	KindPartition = "partition"
	KindPosition  = "position"
	KindUnknown   = "unknown" // an event that this build cannot read
	KindFact      = "fact"    // an event that the house never records after those before it
	KindKey       = "key"
	KindRow       = "row" // billing_records and refund_records
	KindSaga      = "saga"
	KindSchedule  = "schedule"
	KindTimer     = "timer"  // a command that waits for its time
	KindImport    = "import" // imported_charges
	KindReadModel = "read-model"
	KindClosing   = "closing" // of a run: its report is not what it was
	KindFile      = "file"
)

// Difference is something that is not as the log says, or a fault of the log.
type Difference struct {
	Kind   string `json:"kind"`
	About  string `json:"about"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy"`
}

// Report is what came of it.
type Report struct {
	Events      int64
	Streams     int64
	Differences int64
	Lags        []Lag // of processors that are behind
}

// Lag is how far a processor is behind: no difference.
type Lag struct {
	Processor string
	Events    int64 // that it wants and has not handled
	Customers int64 // that it has set aside
}

// Options say how to go about it.
type Options struct {
	// Workers read at the same time; 0 means 2. Each has two connections.
	Workers int
	// Found is told each difference. It is called by one goroutine at a time.
	Found func(Difference)
	// Progress is told how many events of how many are read, by one goroutine at
	// a time; nil: nobody asks.
	Progress func(done, total int64)
}

// tally counts what is found and hands it on.
type tally struct {
	mu      sync.Mutex
	options Options
	total   int64
	report  Report
	log     bool // the log itself is at fault
}

func (t *tally) found(d Difference) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Differences++
	switch d.Kind {
	case KindVersion, KindChain, KindPartition, KindUnknown, KindFact:
		t.log = true
	case KindRow, KindSaga, KindSchedule, KindTimer, KindImport, KindReadModel:
		if t.log {
			d.Remedy = "repair the log first; should it differ then: " + d.Remedy
		}
	}
	if t.options.Found != nil {
		t.options.Found(d)
	}
}

func (t *tally) read(events int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Events += events
	if t.options.Progress != nil {
		t.options.Progress(t.report.Events, t.total)
	}
}
