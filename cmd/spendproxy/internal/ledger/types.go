package ledger

import (
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// VaultKey is a key as everybody may see it: without its secret.
type VaultKey struct {
	ID          string // vk-less public name, such as "9f2c41d07ab34e6f"
	Label       string
	Environment string
	Run         string // idempotency of issuing; empty: not a run's
	Grant       policy.Grant
	CountCap    int64 // 0: none
	Caps        []Cap
	Secrets     []Secret
	CreatedAt   time.Time // all times UTC, business clock
	CreatedBy   string
	RevokedAt   time.Time // zero: not revoked
	Reason      string    // of the revocation
}

// Cap is the cap of a currency and what is used of it in its window.
type Cap struct {
	Currency   domain.Currency
	Minor      int64 // with the raises that hold now
	Ceiling    int64 // of one charge; 0: none
	Spent      int64
	Held       int64 // reserved or unknown
	Charges    int64 // held or spent
	ByOperator bool  // it no longer follows the manifest by itself
}

// Secret is one of a key's secrets, without the secret.
type Secret struct {
	Last4     string
	CreatedAt time.Time
	RetiresAt time.Time // zero: not before the key
}

// Ask asks whether a POST may be forwarded.
type Ask struct {
	ID       string // of the call, unique: a UUID
	VaultKey string
	Call     policy.Call
	Verdict  policy.Verdict // of the rules; a refusal is only written down (or, in mode open and report, passes)
}

// Decision is what the ledger says to an Ask. Exactly one of Forward, Answer,
// Learn and a refusing Verdict holds.
type Decision struct {
	Forward bool
	Verdict policy.Verdict
	Answer  *Answer // given before; it is given again and nothing is forwarded
	Learn   string  // id of an intent or charge that must be read at Stripe and observed first; then ask again
}

// Answer is an answer of Stripe, byte for byte.
type Answer struct {
	Status      int
	ContentType string
	RequestID   string
	Body        []byte
}

// Fate is what became of a forwarded call.
type Fate string

// The fates.
const (
	Unsent   Fate = "unsent"   // no byte reached Stripe: proven
	Answered Fate = "answered" // Answer is complete
	Lost     Fate = "lost"     // sent, and no complete answer came: unknown
)

// Result is what came back for a call that was forwarded.
type Result struct {
	ID       string // of the Ask
	Fate     Fate
	Answer   Answer
	Refused  bool             // the answer proves that this call executed nothing (policy.Proves)
	Settles  bool             // and that no earlier send of its key did (policy.Settles)
	Evidence *policy.Evidence // what the answer shows about the object; nil: nothing
	Latency  time.Duration
}

// Doubt is a reservation that only Stripe can settle.
type Doubt struct {
	Subject string // pi_…, or key:… of a legacy charge or refund
	Intent  string
	Charge  string
	Refund  string
	Since   time.Time

	// Of a charge whose id is not known: whose it is, and of which bill.
	StripeCustomer string
	Bill           policy.BillID
}

// Note is a call as the audit shows it, beside those that pass Begin.
type Note struct {
	ID        string
	VaultKey  string // empty: not authenticated
	Call      policy.Call
	Verdict   policy.Verdict
	Status    int // of the answer that was given
	RequestID string
	Began     time.Time
	Latency   time.Duration
}
