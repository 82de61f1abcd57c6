package ledger

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// page is the part of the books that one transaction works on: read under the
// ledger's lock, changed in memory by one piece of work after the other, and
// written back at once.
type page struct {
	now                time.Time
	quiet, quietStored time.Duration

	vaults   map[string]*vault
	keys     map[string]*sentKey
	answers  map[string]*Answer // by idempotency key
	objects  map[string]*object
	subjects map[string]*subject
	bills    map[policy.BillID]*obligation
	books    map[bookID]*book
	owners   map[string]policy.BillID // by the charge key that their idempotency keys begin with

	audit  []auditRow
	alarms []string

	wrote      bool // something was saved
	newKeys    []*sentKey
	newAnswers []string
	paid       map[policy.BillID]string // to be written wherever the bill is
}

// vault is a vault key as decisions need it.
type vault struct {
	id       string
	grant    policy.Grant
	countCap int64
	revoked  bool
	caps     map[domain.Currency]Cap // Minor with what holds for a time
}

// invalid says why the key gives no access, or is empty.
func (v *vault) invalid(now time.Time) string {
	switch {
	case v == nil:
		return "the vault key is not known"
	case v.revoked:
		return "the vault key is revoked"
	case !v.grant.Expires.IsZero() && !now.Before(v.grant.Expires):
		return "the vault key has expired"
	}
	return ""
}

// sentKey is an idempotency key that was forwarded. It never changes.
type sentKey struct {
	key         string
	fingerprint [32]byte
	vault       string
	rule        policy.Rule
	subject     string
	firstSent   time.Time
}

// object is what Stripe was seen to hold.
type object struct {
	policy.Evidence
	answerKey string
	seen      time.Time
	changed   bool
}

// The states of a subject.
const (
	stateReserved = "reserved" // sent, and nothing came back yet
	stateHeld     = "held"     // something came back, or was read, and proves nothing
	stateSettled  = "settled"  // the money was taken
	stateReleased = "released" // proven: nothing was taken
)

// subject is a reservation.
type subject struct {
	id         string
	refund     bool
	vault      string
	day        string
	amount     domain.Money
	state      string
	settled    domain.Money
	intent     string
	object     string
	bill       policy.BillID
	customer   string // at Stripe
	sends      []send
	since      time.Time
	quietUntil time.Time
	askAt      time.Time
	changed    bool
}

// send is a call for a subject that is not proven to have executed nothing.
type send struct {
	Call string    `json:"call"`
	Key  string    `json:"key"`
	At   time.Time `json:"at"`
}

func (s *subject) open() bool { return s.state == stateReserved || s.state == stateHeld }

// made is the object that the subject's call made, empty until it is known.
func (s *subject) made() string {
	if s.object != "" {
		return s.object
	}
	return s.intent
}

// drop removes the sends that are proven to have executed nothing.
func (s *subject) drop(proven func(send) bool) {
	n := len(s.sends)
	s.sends = slices.DeleteFunc(s.sends, proven)
	s.changed = s.changed || len(s.sends) != n
}

// hold says that something may still come of it, for how long a read that shows
// no payment proves nothing, and when it is worth a read.
func (s *subject) hold(quietUntil, askAt time.Time) {
	s.state, s.changed = stateHeld, true
	s.quietUntil = later(s.quietUntil, quietUntil)
	s.askAt = later(s.askAt, askAt)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// obligation is an entry of a manifest.
type obligation struct {
	policy.Obligation
	vault   string
	changed bool
}

// bookID names a sum: of a vault key, in a currency, on a day (”: the total).
type bookID struct {
	vault    string
	currency domain.Currency
	day      string
}

// book is a sum as it was read, if it was, and what this page adds to it.
type book struct {
	held, spent, charges          int64
	addHeld, addSpent, addCharges int64
	stored                        bool // there is a row of it
}

func (p *page) book(id bookID) *book {
	b := p.books[id]
	if b == nil {
		b = &book{}
		p.books[id] = b
	}
	return b
}

func (b *book) add(held, spent, charges int64) {
	b.held, b.spent, b.charges = plus(b.held, held), plus(b.spent, spent), b.charges+charges
	b.addHeld, b.addSpent, b.addCharges = plus(b.addHeld, held), plus(b.addSpent, spent), b.addCharges+charges
}

// plus is a+b, and the largest number where that is too large.
func plus(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// day is the bucket in which a vault key's reservations of now are counted.
func (p *page) day(v *vault) string {
	if v.grant.Window == policy.Day {
		return dayOf(p.now)
	}
	return ""
}

func dayOf(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// policyBook is what a vault key has promised and spent in a currency, and
// whether it has a cap there.
func (p *page) policyBook(v *vault, currency domain.Currency) (policy.Book, bool) {
	day := p.day(v)
	here := p.book(bookID{v.id, currency, day})
	terms, capped := v.caps[currency]
	b := policy.Book{Cap: terms.Minor, Ceiling: terms.Ceiling, Held: here.held, Spent: here.spent, CountCap: v.countCap}
	for id, other := range p.books {
		if id.vault == v.id && id.day == day {
			b.Count += other.charges
		}
	}
	return b, capped
}

// of finds the subject that an id stands for: of several for one intent that
// which is open, else the one that succeeded.
func (p *page) of(id string) (best *subject) {
	first := p.subjects[id]
	rank := func(s *subject) int {
		switch {
		case s == nil:
			return 0
		case s.open():
			return 3
		case s.state == stateSettled:
			return 2
		}
		return 1
	}
	best = first
	for _, s := range p.subjects {
		same := !s.refund && s.intent != "" && (s.intent == id || first != nil && s.intent == first.intent)
		if same && (rank(s) > rank(best) || rank(s) == rank(best) && s.id < best.id) {
			best = s
		}
	}
	return best
}

// reserve books an amount for a subject, new or released.
func (p *page) reserve(s *subject) {
	p.book(bookID{s.vault, s.amount.Currency, s.day}).add(s.amount.Minor, 0, 1)
	s.state, s.changed = stateReserved, true
	s.settled, s.sends, s.since = domain.Money{}, nil, p.now
	p.subjects[s.id] = s
}

// release gives the room of an open subject back.
func (p *page) release(s *subject) {
	p.book(bookID{s.vault, s.amount.Currency, s.day}).add(-s.amount.Minor, 0, -1)
	s.state, s.sends, s.changed = stateReleased, nil, true
}

// settle books what was really received. A success is the truth also where
// nothing was held for it any more, and also above the cap.
func (p *page) settle(s *subject, received domain.Money) {
	if s.state == stateSettled {
		return
	}
	if received.Minor <= 0 {
		received.Minor = s.amount.Minor
	}
	if received.Currency == "" {
		received.Currency = s.amount.Currency
	}
	before, after := p.book(bookID{s.vault, s.amount.Currency, s.day}), p.book(bookID{s.vault, received.Currency, s.day})
	if s.open() {
		before.add(-s.amount.Minor, 0, -1)
	} else {
		p.alarm("%s succeeded after its reservation had been released: %d %s are spent all the same", s.id, received.Minor, received.Currency)
	}
	if received.Currency != s.amount.Currency || received.Minor > s.amount.Minor {
		p.alarm("%s took %d %s; reserved were %d %s", s.id, received.Minor, received.Currency, s.amount.Minor, s.amount.Currency)
	}
	after.add(0, received.Minor, 1)
	s.state, s.settled, s.sends, s.changed = stateSettled, received, nil, true
}

func (p *page) alarm(format string, args ...any) {
	p.alarms = append(p.alarms, fmt.Sprintf(format, args...))
}

func keySubject(key string) string { return "key:" + key }
