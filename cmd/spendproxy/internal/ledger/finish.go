package ledger

import (
	"net/http"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// keyLife is how long a key surely has its memory at Stripe, which may forget it
// after 24 hours (https://docs.stripe.com/api/idempotent_requests). Within it an
// answer of the key layer speaks for every send of the key.
const keyLife = 23 * time.Hour

// underway is a call that was forwarded and not finished.
type underway struct {
	ask     Ask
	subject string
	tried   bool          // its result may have been written already
	writing chan struct{} // closed when catchUp has tried to write its result
}

// finish books what came back for a call.
func (p *page) finish(u *underway, r Result) {
	c := u.ask.Call
	kept := r.Fate == Answered && p.keep(c, r)
	s := p.of(u.subject)
	var seen policy.Evidence
	if r.Fate == Answered && r.Evidence != nil {
		seen = *r.Evidence
		if seen.Bill.IsZero() && (c.Rule == policy.IntentsCreate || c.Rule == policy.ChargesCreate) {
			seen.Bill = c.Bill
		}
		answerKey := ""
		if kept {
			answerKey = c.Key
		}
		p.learn(seen, answerKey)
		s = p.name(s, u.ask.ID, seen)
	}
	if s != nil {
		p.prove(s, u.ask.ID, c.Key, r)
	}
	if final(seen.State) || seen.State == policy.Unpaid && policy.IntentID(seen.Object) == "" {
		p.see(seen) // what is final holds also if the answer is an old one, replayed
	}
	if s != nil && s.open() && len(s.sends) == 0 {
		p.release(s)
	}
	p.audit = append(p.audit, p.after(u, r, s, seen))
}

// keep stores the answer to a key that succeeded: what it made exists, and the
// key is never sent again. A confirm has succeeded when the money was taken;
// before that a repeated confirm can do no harm.
func (p *page) keep(c policy.Call, r Result) bool {
	if r.Answer.Status < 200 || r.Answer.Status > 299 || r.Evidence == nil || c.Key == "" {
		return false
	}
	if c.Rule == policy.IntentsConfirm && r.Evidence.State != policy.Succeeded {
		return false
	}
	if p.answers[c.Key] == nil {
		answer := r.Answer
		p.answers[c.Key] = &answer
		p.newAnswers = append(p.newAnswers, c.Key)
	}
	return true
}

// name gives a subject the id of what its call made. If the intent is reserved
// already under its own id, what was reserved for the key joins it.
func (p *page) name(s *subject, call string, seen policy.Evidence) *subject {
	intent := policy.IntentID(seen.Object)
	switch {
	case s == nil:
	case s.refund && policy.RefundID(seen.Object) != "", !s.refund && policy.ChargeID(seen.Object) != "":
		if s.object == "" {
			s.object, s.changed = seen.Object, true
		}
	case !s.refund && intent != "" && s.intent == "":
		other := p.of(intent)
		if other == nil || !other.open() {
			s.intent, s.changed = intent, true
			return s
		}
		s.drop(func(one send) bool {
			if one.Call == call {
				other.sends, other.changed = append(other.sends, one), true
			}
			return one.Call == call
		})
		s.intent = intent
		if s.open() && len(s.sends) == 0 {
			p.release(s)
		}
		return other
	}
	return s
}

// prove takes from the subject the sends that the result proves to have executed
// nothing, or holds it. A refusal clears its own send; one of the key layer also
// the earlier ones of its key that Stripe cannot have forgotten.
func (p *page) prove(s *subject, call, key string, r Result) {
	switch {
	case r.Fate == Unsent, r.Fate == Answered && r.Refused:
		layer := r.Fate == Answered && (r.Settles || r.Answer.Status == http.StatusPaymentRequired)
		s.drop(func(one send) bool {
			return one.Call == call || layer && one.Key == key && p.now.Sub(one.At) < keyLife
		})
		if s.state == stateReserved && len(s.sends) > 0 {
			s.state, s.changed = stateHeld, true
		}
	case !s.open():
	case r.Fate == Answered && r.Answer.Status == http.StatusInternalServerError:
		s.hold(p.now.Add(p.quietStored), p.now.Add(p.quiet)) // stored, and perhaps rolled forward later
	default:
		s.hold(p.now.Add(p.quiet), p.now.Add(p.quiet))
	}
}

// observe books what a read of Stripe shows as it is now.
func (p *page) observe(seen []policy.Evidence) {
	for _, one := range seen {
		p.learn(one, "")
		p.see(one)
	}
}

// see settles and releases what an object's state proves.
func (p *page) see(e policy.Evidence) {
	intent := policy.IntentID(e.Object)
	refund := policy.RefundID(e.Object) != ""
	if intent == "" && !refund {
		intent = e.Intent // a charge speaks for its intent where it succeeded
	}
	var s *subject
	if intent != "" {
		s = p.of(intent)
	} else {
		s = p.ofObject(e, refund)
	}
	if e.State == policy.Succeeded && !refund {
		p.markPaid(e, s, intent)
	}
	if s == nil {
		return
	}
	whole := e.Object == intent || intent == "" // not one of several charges of an intent
	switch {
	case e.State == policy.Succeeded:
		received := e.Amount
		if e.Received > 0 {
			received.Minor = e.Received
		}
		p.settle(s, received)
	case !s.open() || !whole:
	case e.State == policy.Cancelled, e.State == policy.Unpaid && intent == "":
		p.release(s) // final
	case e.State == policy.Unpaid && !p.now.Before(s.quietUntil):
		p.release(s)
	default: // nothing is proven; it is asked again later
		s.hold(s.quietUntil, p.now.Add(p.quiet))
		if e.State == policy.Unpaid && s.askAt.After(s.quietUntil) {
			s.askAt = s.quietUntil
		}
	}
}

// ofObject finds the subject of a charge or refund that belongs to no intent: by
// its id, by the key that made it, or by its bill, of which one charge at a time
// may be open.
func (p *page) ofObject(e policy.Evidence, refund bool) *subject {
	var known *subject
	for _, s := range p.subjects {
		if s.object == e.Object && (known == nil || s.open()) {
			known = s
		}
	}
	if known != nil {
		return known
	}
	s := p.subjects[keySubject(e.Key)]
	if e.Key == "" {
		for _, one := range p.subjects {
			match := one.open() && !one.refund && one.intent == "" && one.object == "" && one.bill == e.Bill && one.amount == e.Amount
			if match && !refund && !e.Bill.IsZero() && e.State == policy.Succeeded && !e.Created.Before(one.since.Add(-keyLife)) {
				s = one
			}
		}
	}
	if s != nil && s.refund == refund && s.object == "" && s.intent == "" {
		s.object, s.changed = e.Object, true
		return s
	}
	return nil
}

// markPaid writes the first success into the bill.
func (p *page) markPaid(e policy.Evidence, s *subject, intent string) {
	bill, by := e.Bill, e.Object
	if intent != "" {
		by = intent
		if o := p.objects[intent]; bill.IsZero() && o != nil {
			bill = o.Bill
		}
	}
	if bill.IsZero() && s != nil {
		bill = s.bill
	}
	if bill.IsZero() {
		return
	}
	if o := p.bills[bill]; o != nil {
		if o.Paid != "" {
			if o.Paid != by {
				p.alarm("the bill %s was charged by %s and again by %s", bill, o.Paid, by)
			}
			return
		}
		o.Paid = by
	}
	if p.paid[bill] == "" {
		p.paid[bill] = by
	}
}

// learn remembers what Stripe holds. What is final stays.
func (p *page) learn(e policy.Evidence, answerKey string) {
	if e.Object == "" {
		return
	}
	o := p.objects[e.Object]
	if o == nil {
		if policy.ChargeID(e.Object) != "" && e.State == policy.Unpaid {
			return // a declined attempt says nothing for later
		}
		o = &object{changed: true}
		p.objects[e.Object] = o
	}
	if answerKey != "" && e.State == policy.Succeeded && o.answerKey == "" {
		o.answerKey, o.changed = answerKey, true
	}
	raw := o.Raw
	if e.State == policy.Succeeded && o.answerKey == "" && len(raw) == 0 {
		raw = e.Raw
	}
	if o.changed || !same(o.Evidence, e) || len(raw) != len(o.Raw) || e.State == policy.Absent {
		if final(o.State) && !final(e.State) {
			return
		}
		if e.Bill.IsZero() {
			e.Bill = o.Bill
		}
		if e.State == policy.Absent && o.Object != "" && o.State != policy.Absent {
			return // it was there: another account, or a test's data that were deleted
		}
		e.Raw = raw
		o.Evidence, o.seen, o.changed = e, p.now, true
	}
}

func final(s policy.ObjectState) bool { return s == policy.Succeeded || s == policy.Cancelled }

// same tells whether evidence shows nothing new.
func same(known, e policy.Evidence) bool {
	return known.Object == e.Object && known.State == e.State && known.Amount == e.Amount && known.Received == e.Received &&
		known.Intent == e.Intent && known.StripeCustomer == e.StripeCustomer && known.LatestCharge == e.LatestCharge &&
		(known.Bill == e.Bill || e.Bill.IsZero())
}

// after is the audit's row after the call.
func (p *page) after(u *underway, r Result, s *subject, seen policy.Evidence) auditRow {
	row := rowOf(u.ask.ID, "after", p.now, u.ask.VaultKey, u.ask.Call)
	row.Verdict, row.Reservation, row.Reason = "allow", "none", string(r.Fate)
	row.again = u.tried
	row.Status, row.RequestID, row.Latency = r.Answer.Status, r.Answer.RequestID, r.Latency
	if row.Object == "" {
		row.Object = seen.Object
	}
	bill := u.ask.Call.Bill
	if s != nil {
		row.Reservation = s.state
		if s.state == stateReserved {
			row.Reservation = stateHeld
		}
		row.Amount, row.Currency = s.amount.Minor, s.amount.Currency
		if s.state == stateSettled {
			row.Amount, row.Currency = s.settled.Minor, s.settled.Currency
		}
		if bill.IsZero() {
			bill = s.bill
		}
	}
	if bill.IsZero() {
		bill = seen.Bill
	}
	row.setBill(bill)
	return row
}

// free is an operator's word that nothing was taken.
func (p *page) free(id, call, reason, by string) error {
	s := p.subjects[id]
	switch {
	case s == nil:
		return ErrNoSubject
	case s.state == stateSettled:
		return ErrSettled
	case s.state == stateReleased:
		return ErrReleased
	}
	p.release(s)
	row := auditRow{Recorded: Recorded{
		Call: call, Phase: "after", At: p.now, VaultKey: s.vault, Method: "RELEASE", Path: s.id, Verdict: "allow",
		Reason: "released by " + by + ": " + reason, Object: s.made(), Amount: s.amount.Minor, Currency: s.amount.Currency, Reservation: stateReleased,
	}}
	row.setBill(s.bill)
	p.audit = append(p.audit, row)
	return nil
}
