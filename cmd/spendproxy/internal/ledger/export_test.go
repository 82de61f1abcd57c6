package ledger

import "context"

// Prune prunes the audit once.
func (l *Ledger) Prune(ctx context.Context) error { return l.prune(ctx) }

// Kept counts the results that are not written yet.
func (l *Ledger) Kept() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.later)
	for _, u := range l.calls {
		if u.writing != nil {
			n++
		}
	}
	return n
}
