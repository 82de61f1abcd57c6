package eventstore

// Rounds is how AppendTx and the shared commits split batches.
func Rounds(batches []Batch) [][]int { return rounds(batches) }

// Queued is how many appends wait for a shared commit.
func (s *Store) Queued() int {
	s.appender.mu.Lock()
	defer s.appender.mu.Unlock()
	return len(s.appender.queue)
}

// Ambiguous marks an error after which nobody knows.
func Ambiguous(err error) error { return ambiguous(err) }

const (
	PageSize   = pageSize
	Committers = committers
	GroupMost  = groupMost
	LockClass  = lockClass
)

// HeadOf is the head that a batch's events leave behind.
func HeadOf(r Result) Head { return r.Recorded[len(r.Recorded)-1].Head() }

// DigestOf is an event's digest.
var DigestOf = digest
