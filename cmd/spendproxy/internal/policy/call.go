package policy

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// Rule is what a vault key may be allowed: a kind of operation on a kind of object.
type Rule string

// The rules. A read covers one object and lists of them.
const (
	IntentsCreate  Rule = "intents:create"
	IntentsConfirm Rule = "intents:confirm"
	IntentsCancel  Rule = "intents:cancel"
	IntentsRead    Rule = "intents:read"
	ChargesCreate  Rule = "charges:create"
	ChargesRead    Rule = "charges:read"
	CustomersRead  Rule = "customers:read"
	MethodsRead    Rule = "payment_methods:read"
	AccountRead    Rule = "account:read"
	RefundsCreate  Rule = "refunds:create"
	RefundsRead    Rule = "refunds:read"
	EventsRead     Rule = "events:read"
)

// RunRules are the rules of a run's key.
var RunRules = []Rule{IntentsCreate, IntentsConfirm, IntentsCancel, IntentsRead, ChargesCreate, ChargesRead}

// BillID names a bill. The zero value names none.
type BillID struct {
	Customer domain.CustomerID
	Period   domain.Period
}

// IsZero reports whether b names no bill.
func (b BillID) IsZero() bool { return b.Customer == "" }

// Call is one request in the only form in which it may go on: canonical and
// read completely.
type Call struct {
	Method string
	Path   string // canonical; what is forwarded
	Query  string // canonical; of a GET
	Rule   Rule
	List   bool
	Object string // the id in the path; empty for a create or a list

	Key         string   // Idempotency-Key; empty for a GET
	Form        []Pair   // parameters: of a POST in the order of its body, of a GET in that of its query
	Fingerprint [32]byte // of method, path and parameters, whatever their order

	// What the parameters say. Zero where they say nothing.
	Amount         int64
	Currency       domain.Currency
	StripeCustomer string
	Bill           BillID // by the markers customer_id and billing_period in the metadata
	Confirms       bool   // a create with confirm=true: it takes money at once
	Charge         string // whose money a refund gives back; or Intent
	Intent         string
}

// Pair is one parameter.
type Pair struct{ Name, Value string }

// Moves reports whether the call can move money.
func (c Call) Moves() bool {
	return c.Rule == IntentsConfirm || c.Rule == ChargesCreate || c.Rule == RefundsCreate || c.Confirms
}

// Mode is how much a vault key's verdicts bind. Paths that are not canonical,
// unknown operations and requests that cannot be read are refused in every mode.
type Mode string

// The modes.
const (
	Open    Mode = "open"    // forwards and counts
	Report  Mode = "report"  // forwards, and writes down what it would have refused
	Enforce Mode = "enforce" // refuses
)

// Window is what a cap counts over.
type Window string

// The windows.
const (
	Total Window = "total"
	Day   Window = "day" // of UTC, on the business clock
)

// Grant is what a vault key allows, beside its caps.
type Grant struct {
	Rules    []Rule
	Mode     Mode
	Window   Window
	Manifest bool      // calls must be what a bill of the manifest needs
	Expires  time.Time // business time; zero: never
}

// Obligation is a bill that the manifest holds.
type Obligation struct {
	Bill           BillID
	Amount         domain.Money
	StripeCustomer string // empty: any
	Fixed          bool   // immutable: its due is declared, or a create has passed
	Paid           string // id of the intent or charge that took it; empty: none yet
}

// ObjectState is what an object at Stripe shows about money.
type ObjectState string

// The states.
const (
	Succeeded  ObjectState = "succeeded"
	Unpaid     ObjectState = "unpaid" // open: a further confirm may take money; or a charge that failed
	Processing ObjectState = "processing"
	Action     ObjectState = "action" // the customer must act
	Cancelled  ObjectState = "cancelled"
	Absent     ObjectState = "absent" // Stripe says there is no such object
)

// Evidence is what an answer of Stripe shows about one object.
type Evidence struct {
	Object         string // pi_…, ch_…, py_… or re_…
	Intent         string // the intent that a charge belongs to
	State          ObjectState
	Amount         domain.Money
	Received       int64 // of what succeeded, minor units
	Refunded       bool
	StripeCustomer string
	Bill           BillID // by markers; zero: none, or they cannot be read
	LatestCharge   string // of an intent; of a refund the charge whose money it gives back
	Key            string // Idempotency-Key of the request that caused it; only an event tells
	Created        time.Time
	Raw            []byte // the object as Stripe wrote it, where it was the whole answer
}
