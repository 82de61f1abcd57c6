package ledger

import (
	"errors"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// What the ledger's answers for people may be refused with. Anything else is
// trouble with the database.
var (
	ErrNoKey     = errors.New("there is no such vault key")
	ErrRevoked   = errors.New("the vault key is revoked")
	ErrExpired   = errors.New("the vault key has expired; extend it first")
	ErrInvalid   = errors.New("invalid") // wrapped with the field and what is wrong
	ErrNoSubject = errors.New("nothing is reserved under this name")
	ErrSettled   = errors.New("the charge has succeeded; only what is open can be released")
	ErrReleased  = errors.New("the reservation was released before")
	ErrNoCall    = errors.New("no call with this id is under way here")
)

// Issue is what a new vault key is to be.
type Issue struct {
	Label       string
	Environment string
	Run         string // the same run has one key an environment, however often it is issued; empty: a new key each time
	Grant       policy.Grant
	CountCap    int64 // charges in the window, over all currencies; 0: none
	Caps        []CapTerms
	By          string
}

// CapTerms is the cap of one currency, in minor units.
type CapTerms struct {
	Currency domain.Currency
	Minor    int64
	Ceiling  int64 // of one charge; 0: none
}

// KeyFilter selects vault keys. Zero fields select all.
type KeyFilter struct {
	Run, Label string
	Live       bool   // neither revoked nor expired
	After      string // id of the last one seen; the order is that of issuing
	Limit      int    // 100 unless told, 1,000 at most
}

// Raise changes a cap, in minor units: exactly one of To and More is given. To
// may also be lower than the cap is; set for good, it ends what holds for a time
// as well. A cap that was changed for good follows no manifest any more.
type Raise struct {
	Key      string
	Currency domain.Currency
	To       *int64
	More     int64     // positive
	Until    time.Time // it ends then; zero: for good
	Reason   string
	By       string // who
}

// Raised is one change of a vault key, as it was written down.
type Raised struct {
	What     string // raise, manifest, extend, rotate or revoke
	Currency domain.Currency
	From, To int64     // the cap before and after, minor units
	Until    time.Time // of a raise for a time, or of the key's life
	Reason   string
	By       string
	At       time.Time
}

// Entry is one line of a manifest.
type Entry struct {
	policy.Obligation
	Withdrawn bool // the bill is not due any more; of no effect once it is fixed
}

// Registered says what a manifest did.
type Registered struct {
	Received, New, Changed, Unchanged, Withdrawn int

	RefusedCount int
	Refused      []RefusedEntry // the first 100
	Expected     []Expected     // of the key's whole manifest, by currency
}

// RefusedEntry is a line that was not taken.
type RefusedEntry struct {
	Line    int // from 1
	Bill    policy.BillID
	Code    string // invalid_entry, entry_fixed, or entry_moved: a newer key holds the bill
	Message string
}

// Expected is the sum of a manifest in one currency, and the cap for it.
type Expected struct {
	Currency domain.Currency
	Bills    int64
	Minor    int64
	Cap      int64 // without raises for a time
}

// CallFilter selects rows of the audit. Zero fields select all.
type CallFilter struct {
	Customer       string
	Period         string
	VaultKey       string
	IdempotencyKey string
	Object         string // intent, charge or refund
	Refused        bool   // refused, or would have been
	After          string // the cursor of the page before
	Limit          int    // 100 unless told, 1,000 at most
}

// Recorded is a row of the audit.
type Recorded struct {
	Call           string
	At             time.Time
	Phase          string // before or after
	VaultKey       string
	Method         string
	Path           string
	Rule           policy.Rule
	Verdict        string // allow, refuse or would_refuse
	Code           policy.Code
	Reason         string
	Customer       string
	Period         string
	Object         string
	Amount         int64
	Currency       domain.Currency
	IdempotencyKey string
	Reservation    string // reserved, shared, none, released, settled or held
	Status         int    // 0: no answer
	RequestID      string // Stripe's
	Latency        time.Duration
}

// BooksFilter selects the books of a key or a run. Zero fields select all.
type BooksFilter struct {
	VaultKey, Run string
}

// Sum is what was charged in one currency, in minor units, and how often.
type Sum struct {
	Currency                      domain.Currency
	Settled, SettledCount         int64
	Held, HeldCount               int64 // reserved or unknown
	Refunded, RefundedCount       int64 // through keys that may refund
	RefundsHeld, RefundsHeldCount int64
}
