package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"
	"time"
)

// Prune is when a key that is old enough is really forgotten. Stripe promises
// only that it is kept for 24 hours; a caller has to live with all three.
type Prune string

// The prune modes.
const (
	PruneExact  Prune = "exact"  // at the retention time
	PruneLate   Prune = "late"   // six hours after it
	PruneRandom Prune = "random" // at some time in the 48 hours after it, different for each key and seed
)

// maxKey is the longest Idempotency-Key.
const maxKey = 255

// keyEntry is what is remembered under a key.
type keyEntry struct {
	scope       string // the key, with its path in front where keys are per path
	path        string // method and path of the first request
	fingerprint [sha256.Size]byte
	began       int64 // nanoseconds, on the stand-in's clock
	request     string

	done   bool
	status int
	body   []byte // the answer, or where it stands in the journal
	offset int64
	length int

	counts KeyCounts
}

// KeyCounts is what happened under a key since the stand-in started or forgot
// it.
type KeyCounts struct {
	Executions int64 `json:"executions"`
	Replays    int64 `json:"replays"`
	Mismatches int64 `json:"mismatches"`
	Conflicts  int64 `json:"conflicts"`
}

// keyStore is the key layer's memory.
type keyStore struct {
	entries map[string]*keyEntry
	queue   []*keyEntry // in order of their beginning, to find the old ones
	pruned  int64
}

func newKeyStore() *keyStore { return &keyStore{entries: make(map[string]*keyEntry)} }

// standing is how a request relates to its key.
type standing uint8

const (
	unkeyed standing = iota
	fresh
	replayed
	mismatched
	inProgress
)

// scopeOf is the identity of a key: the key itself, since Stripe has one key
// space for all endpoints, or key and path under the switch that breaks that.
func scopeOf(set *Settings, key, path string) string {
	if set.KeyPerPath {
		return path + "\n" + key
	}
	return key
}

// look finds out how a request stands to its key. An entry past its life is
// forgotten here.
func (k *keyStore) look(set *Settings, c *call, now time.Time) (standing, *keyEntry) {
	if !c.keyed || set.IgnoreKeys {
		return unkeyed, nil
	}
	e := k.entries[scopeOf(set, c.key, c.path)]
	switch {
	case e == nil:
		return fresh, nil
	case e.done && set.expired(e, now):
		k.forget(e)
		k.pruned++
		return fresh, e
	case e.path != c.methodPath() || e.fingerprint != c.fingerprint:
		return mismatched, e
	case !e.done:
		return inProgress, e
	}
	return replayed, e
}

// begin remembers that a request runs under the key. counts carries over what
// was counted under it before it was pruned.
func (k *keyStore) begin(set *Settings, c *call, now time.Time, counts KeyCounts) *keyEntry {
	k.sweep(set, now)
	e := &keyEntry{
		scope: scopeOf(set, c.key, c.path), path: c.methodPath(), fingerprint: c.fingerprint,
		began: now.UnixNano(), request: c.id, counts: counts,
	}
	k.remember(e)
	return e
}

func (k *keyStore) remember(e *keyEntry) {
	k.entries[e.scope] = e
	k.queue = append(k.queue, e)
}

// forget drops an entry, also one whose request ended without an answer worth
// keeping.
func (k *keyStore) forget(e *keyEntry) {
	if k.entries[e.scope] == e {
		delete(k.entries, e.scope)
	}
}

// sweep drops a few entries past their life, so that memory does not grow with
// the age of the process.
func (k *keyStore) sweep(set *Settings, now time.Time) {
	for range 4 {
		if len(k.queue) == 0 {
			return
		}
		e := k.queue[0]
		live := k.entries[e.scope] == e
		if live && (!e.done || !set.expired(e, now)) {
			return
		}
		if live {
			k.forget(e)
			k.pruned++
		}
		k.queue[0] = nil
		k.queue = k.queue[1:]
	}
}

// expired tells whether the key may be, and is, forgotten at that time.
func (set *Settings) expired(e *keyEntry, now time.Time) bool {
	life := set.KeyRetention
	switch set.Prune {
	case PruneLate:
		life += 6 * time.Hour
	case PruneRandom:
		h := fnv.New64a()
		if set.PruneSeed != 0 {
			h.Write(binary.BigEndian.AppendUint64(nil, set.PruneSeed))
		}
		h.Write([]byte(e.scope))
		life += time.Duration(h.Sum64() % uint64(48*time.Hour))
	case PruneExact:
	}
	return now.UnixNano()-e.began >= int64(life)
}
