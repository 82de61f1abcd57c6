package ledger

import (
	"cmp"
	"math"
	"net/http"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// absence is how long Stripe's word that it has no such object is repeated
// before it is asked again.
const absence = 10 * time.Second

// asking is an Ask on its way to a decision.
type asking struct {
	Ask
	page  *page
	vault *vault
	known *policy.Evidence // the intent or charge that the call is about
	sub   *subject         // that it moves money for, if there is one
	would policy.Verdict   // a refusal that gave way to the mode
}

// begin decides, in the order in which the rules bind: the key's validity, what
// was answered before, what must be learnt first, the bill, the cap. It returns
// the call's subject, empty for one that moves no money.
func (p *page) begin(ask Ask) (Decision, string) {
	a := &asking{Ask: ask, page: p, vault: p.vaults[ask.VaultKey]}
	if why := a.vault.invalid(p.now); why != "" {
		return a.refuse(policy.Refuse(http.StatusUnauthorized, policy.CodeVaultKey, "%s", why)), ""
	}
	if a.binds(a.Verdict) {
		return a.refuse(a.Verdict), ""
	}
	if a.Call.Key == "" {
		return a.refuse(policy.Refuse(http.StatusBadRequest, policy.CodeNoKey, "a POST needs an Idempotency-Key")), ""
	}
	former := p.keys[a.Call.Key]
	if verdict := a.judgeDerived(former); a.binds(verdict) {
		return a.refuse(verdict), ""
	}
	if former != nil && former.fingerprint != a.Call.Fingerprint {
		return a.refuse(policy.Refuse(http.StatusBadRequest, policy.CodeReused, "the Idempotency-Key was sent before with another path or other parameters")), ""
	}
	if answer := p.answers[a.Call.Key]; former != nil && answer != nil {
		return a.repeat(answer), ""
	}
	if d, done := a.learn(); done {
		return d, ""
	}
	if d, done := a.find(former); done {
		return d, ""
	}
	shared := a.sub != nil && a.sub.open()
	resent := former != nil && shared
	var bill *obligation
	if a.vault.grant.Manifest && !resent {
		var verdict policy.Verdict
		if bill, verdict = a.judge(); a.binds(verdict) {
			return a.refuse(verdict), ""
		}
	}
	if !a.vault.grant.Manifest && !resent {
		if verdict := policy.JudgeUnbound(a.Call, a.known); a.binds(verdict) {
			return a.refuse(verdict), ""
		}
	}
	reservation := "none"
	if a.Call.Moves() {
		if reservation = "shared"; !shared {
			if verdict := a.reserve(); !verdict.Allow {
				return a.refuse(verdict), ""
			}
			reservation = "reserved"
		}
		a.send()
	}
	if bill != nil && !bill.Fixed && (a.Call.Rule == policy.IntentsCreate || a.Call.Moves()) {
		bill.Fixed, bill.changed = true, true
	}
	return a.forward(former, reservation)
}

// judgeDerived judges the use of a bill's key by a vault key without a manifest.
// What it sent before the bill was known is out already, and may be sent again.
func (a *asking) judgeDerived(former *sentKey) policy.Verdict {
	owner, owned := a.page.owners[policy.ChargeKeyIn(a.Call.Key)]
	if !owned || a.vault.grant.Manifest || former != nil && former.vault == a.vault.id {
		return policy.Verdict{Allow: true}
	}
	var known *policy.Evidence
	if o := a.page.objects[cmp.Or(a.Call.Charge, a.Call.Intent)]; o != nil {
		known = &o.Evidence
	}
	return policy.JudgeDerived(a.Call, owner, known)
}

// binds tells whether a verdict refuses. One that gives way to the key's mode is
// remembered for the audit.
func (a *asking) binds(v policy.Verdict) bool {
	if v.Allow {
		return false
	}
	if a.vault.grant.Mode == policy.Enforce || !v.Yields() {
		return true
	}
	if a.would.Code == "" {
		a.would = v
	}
	return false
}

func (a *asking) refuse(v policy.Verdict) Decision {
	row := a.row("refuse", "none")
	row.Code, row.Reason, row.Status = v.Code, v.Reason, v.Status
	a.page.audit = append(a.page.audit, row)
	return Decision{Verdict: v}
}

func (a *asking) repeat(answer *Answer) Decision {
	row := a.row("allow", "none")
	row.Reason, row.Status, row.RequestID = "it has succeeded; the answer is given again", answer.Status, answer.RequestID
	a.page.audit = append(a.page.audit, row)
	return Decision{Answer: answer, Verdict: policy.Verdict{Allow: true, Reason: row.Reason}}
}

func (a *asking) forward(former *sentKey, reservation string) (Decision, string) {
	p, subject := a.page, ""
	if a.sub != nil {
		subject = a.sub.id
	}
	if former == nil {
		key := &sentKey{key: a.Call.Key, fingerprint: a.Call.Fingerprint, vault: a.VaultKey, rule: a.Call.Rule, subject: subject, firstSent: p.now}
		p.keys[key.key] = key
		p.newKeys = append(p.newKeys, key)
	}
	row := a.row("allow", reservation)
	v := policy.Verdict{Allow: true, Reason: "within the rules"}
	if a.Call.Moves() {
		v.Reason = "within the cap"
	}
	if a.would.Code != "" {
		row.Verdict, v.Code, v.Reason = "would_refuse", a.would.Code, "would be refused: "+a.would.Reason
	}
	row.Code, row.Reason = v.Code, v.Reason
	p.audit = append(p.audit, row)
	return Decision{Forward: true, Verdict: v}, subject
}

// learn finds what Stripe holds of the object that the call is about. Where it
// must be read first, or has succeeded already, the decision is made.
func (a *asking) learn() (Decision, bool) {
	c, id := a.Call, ""
	switch {
	case c.Rule == policy.IntentsConfirm, c.Rule == policy.IntentsCancel && a.vault.grant.Manifest:
		id = c.Object
	case c.Rule == policy.RefundsCreate:
		if id = c.Charge; id == "" {
			id = c.Intent
		}
	}
	if id == "" {
		return Decision{}, false
	}
	o := a.page.objects[id]
	if o == nil || o.State == policy.Absent && a.page.now.Sub(o.seen).Abs() > absence {
		return Decision{Learn: id}, true
	}
	if o.State == policy.Absent {
		return a.refuse(policy.Refuse(http.StatusNotFound, policy.CodeParameter, "Stripe holds no %s", id)), true
	}
	if c.Rule == policy.IntentsConfirm && o.State == policy.Succeeded {
		return a.shown(id), true
	}
	a.known = &o.Evidence
	return Decision{}, false
}

// shown answers with an object that has succeeded, in Stripe's own words.
func (a *asking) shown(id string) Decision {
	o := a.page.objects[id]
	switch {
	case o == nil:
		return Decision{Learn: id}
	case a.page.answers[o.answerKey] != nil:
		return a.repeat(a.page.answers[o.answerKey])
	case len(o.Raw) > 0:
		return a.repeat(&Answer{Status: http.StatusOK, ContentType: "application/json", Body: o.Raw})
	}
	return Decision{Learn: id}
}

// find sets the subject that the call moves money for. One that has succeeded
// is answered, also where its answer never came.
func (a *asking) find(former *sentKey) (Decision, bool) {
	if !a.Call.Moves() {
		return Decision{}, false
	}
	id := keySubject(a.Call.Key)
	if a.Call.Rule == policy.IntentsConfirm {
		id = a.Call.Object
	}
	if former != nil && former.subject != "" {
		id = former.subject
	}
	a.sub = a.page.of(id)
	if a.sub == nil || a.sub.state != stateSettled {
		return Decision{}, false
	}
	object := a.sub.made()
	if object == "" { // settled by the word of an event that shows no object
		return a.refuse(policy.Refuse(http.StatusForbidden, policy.CodePaid, "it has succeeded; its answer was lost")), true
	}
	return a.shown(object), true
}

// judge holds the call against its bill. While one charge of a bill may succeed,
// or has, there is no other.
func (a *asking) judge() (*obligation, policy.Verdict) {
	bill := policy.BillOf(a.Call, a.known)
	o := a.page.bills[bill]
	if o != nil && o.vault != a.vault.id {
		o = nil
	}
	var held *policy.Obligation
	if o != nil {
		held = &o.Obligation
	}
	if v := policy.Judge(a.Call, held, a.known); !v.Allow || !a.Call.Moves() {
		return o, v
	}
	v := policy.Verdict{Allow: true}
	for _, s := range a.page.subjects {
		if s == a.sub || s.refund || s.bill != bill {
			continue
		}
		switch {
		case s.state == stateSettled:
			return o, policy.Refuse(http.StatusForbidden, policy.CodePaid, "the bill %s was charged by %s", bill, s.id)
		case s.open():
			v = policy.Refuse(http.StatusForbidden, policy.CodeInFlight, "another charge of the bill %s may still succeed: %s", bill, s.id)
		}
	}
	return o, v
}

// reserve books the call's amount, or refuses.
func (a *asking) reserve() policy.Verdict {
	p, c := a.page, a.Call
	amount := domain.Money{Minor: c.Amount, Currency: c.Currency}
	s := &subject{id: keySubject(c.Key), bill: c.Bill, customer: c.StripeCustomer}
	if a.sub != nil {
		s = a.sub
	}
	switch {
	case c.Rule == policy.IntentsConfirm:
		amount = a.known.Amount
		if a.sub == nil {
			s.id, s.intent = c.Object, c.Object
		}
		s.bill, s.customer = a.known.Bill, a.known.StripeCustomer
	case c.Rule == policy.RefundsCreate:
		amount.Currency = a.known.Amount.Currency
		if amount.Minor == 0 {
			amount.Minor = max(a.known.Received, a.known.Amount.Minor)
		}
		s.refund, s.bill = true, a.known.Bill
	}
	book, capped := p.policyBook(a.vault, amount.Currency)
	verdict := book.Decide(amount.Minor)
	if !capped {
		verdict = policy.Refuse(http.StatusForbidden, policy.CodeCurrency, "the vault key has no cap in %q", amount.Currency)
	}
	switch {
	case a.binds(verdict):
		return verdict
	case amount.Minor <= 0 || amount.Currency == "" || book.Held > math.MaxInt64-amount.Minor || book.Held+amount.Minor > math.MaxInt64-book.Spent:
		return policy.Refuse(http.StatusForbidden, policy.CodeParameter, "the amount cannot be counted")
	}
	if c.Rule != policy.IntentsConfirm {
		s.intent, s.object = "", "" // what a former, failed try made
	}
	s.vault, s.day, s.amount = a.vault.id, p.day(a.vault), amount
	s.quietUntil, s.askAt = p.now, p.now
	p.reserve(s)
	a.sub = s
	return policy.Verdict{Allow: true}
}

// send notes that the call is about to be made for its subject.
func (a *asking) send() {
	s, until := a.sub, a.page.now.Add(a.page.quiet)
	s.drop(func(one send) bool { return one.Call == a.ID }) // the same call, begun again
	s.sends = append(s.sends, send{Call: a.ID, Key: a.Call.Key, At: a.page.now})
	s.quietUntil, s.askAt, s.changed = later(s.quietUntil, until), later(s.askAt, until), true
}

// row is the audit's row before the call.
func (a *asking) row(verdict, reservation string) auditRow {
	r := rowOf(a.ID, "before", a.page.now, a.VaultKey, a.Call)
	r.Verdict, r.Reservation = verdict, reservation
	bill := a.Call.Bill
	if a.known != nil {
		if bill.IsZero() {
			bill = a.known.Bill
		}
		if r.Amount == 0 {
			r.Amount = a.known.Amount.Minor
		}
		if r.Currency == "" {
			r.Currency = a.known.Amount.Currency
		}
	}
	r.setBill(bill)
	return r
}
