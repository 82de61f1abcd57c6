package sim

import (
	"container/heap"
	"crypto/sha256"
	"strings"
	"time"
)

// errand is something that happens at a later time on the stand-in's clock: the
// end of the processing of an intent or a legacy charge, or the execution of a
// request whose 500 is rolled forward.
type errand struct {
	due     int64
	object  string
	forward *forward
}

// forward is a request that was answered 500 and executes later all the same.
type forward struct {
	ID          string `json:"id"`
	Due         int64  `json:"due"`
	Method      string `json:"m"`
	Path        string `json:"p"`
	Form        string `json:"f"`
	Key         string `json:"k,omitempty"`
	Fingerprint []byte `json:"fp"`
}

type errands []errand

func (e errands) Len() int           { return len(e) }
func (e errands) Less(i, j int) bool { return e[i].due < e[j].due }
func (e errands) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *errands) Push(x any)        { *e = append(*e, x.(errand)) }
func (e *errands) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

func (s *Sim) schedule(due int64, object string, f *forward) {
	heap.Push(&s.errands, errand{due: due, object: object, forward: f})
	s.wake()
}

// settle runs every errand whose time has come, each at its own time. It is
// called, with mu held, before anything looks at the state.
func (s *Sim) settle(now time.Time) {
	for len(s.errands) > 0 && s.errands[0].due <= now.UnixNano() {
		e := heap.Pop(&s.errands).(errand)
		t := &tx{s: s, c: &call{s: s, id: newID("req_", 14), inner: true}, now: at(e.due)}
		switch {
		case e.forward != nil:
			t.rollForward(e.forward)
		case strings.HasPrefix(e.object, "ch_"):
			t.finishCharge(e.object)
		default:
			t.finishProcessing(e.object)
		}
		t.commit(nil, nil)
	}
}

// rollForward executes a request that its caller holds for failed. Its answer
// goes nowhere: the key keeps the 500.
func (t *tx) rollForward(f *forward) {
	t.rec.Forwarded = append(t.rec.Forwarded, f.ID)
	delete(t.s.forwards, f.ID)
	p, e := parseParams("", f.Form)
	if e != nil {
		return
	}
	c := t.c
	c.inner, c.id, c.key, c.keyed, c.params, c.path, c.method = false, f.ID, f.Key, f.Key != "", p, f.Path, f.Method
	copy(c.fingerprint[:], f.Fingerprint[:min(len(f.Fingerprint), sha256.Size)])
	if u, err := parsePath(f.Path); err == nil {
		c.route, c.object, _ = t.s.find(f.Method, u)
	}
	if c.route != nil {
		c.route.run(t)
	}
}
