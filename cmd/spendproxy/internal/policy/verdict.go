package policy

import (
	"fmt"
	"math"
	"net/http"
)

// Verdict is why a call may or may not pass. The reason is for people, logs and
// the caller; it never holds a secret.
type Verdict struct {
	Allow  bool
	Status int    // HTTP status of a refusal
	Code   Code   // empty if allowed
	Reason string // also of what is allowed
}

// Code names a refusal, in the answer's error.code and in the audit.
type Code string

// The refusals. Their names are public API.
const (
	CodeCapExceeded   Code = "spend_cap_exceeded"  // 429: the cap of the currency has no room
	CodeCountExceeded Code = "charge_cap_exceeded" // 429: the number of charges has no room
	CodeCeiling       Code = "charge_too_large"    // 403: above the ceiling of one charge
	CodeRule          Code = "not_permitted"       // 403: no rule of the key permits the operation
	CodeParameter     Code = "parameter_refused"   // 403: a parameter that is not permitted
	CodeObligation    Code = "no_such_bill"        // 403: the manifest does not hold the bill
	CodeMismatch      Code = "bill_mismatch"       // 403: amount, currency or customer are not the bill's
	CodeKey           Code = "key_not_derived"     // 403: the idempotency key is not the bill's
	CodePaid          Code = "already_charged"     // 403: the bill has succeeded by another charge
	CodeBill          Code = "bill_of_a_run"       // 403: a key without a manifest names a bill, or uses its keys
	CodeInFlight      Code = "charge_unresolved"   // 403: another charge of the bill may still succeed
	CodeCurrency      Code = "currency_not_capped" // 403: the key has no cap in the currency
	CodeTarget        Code = "path_refused"        // 403: not a canonical path of an operation that is known
	CodeRequest       Code = "request_refused"     // 400, 408, 413, 415, 417, 431, 501, 505: cannot be read strictly
	CodeNoKey         Code = "idempotency_key_required"
	CodeReused        Code = "idempotency_key_reused" // 400 idempotency_error: the key came with other parameters
	CodeVaultKey      Code = "vault_key_invalid"      // 401: unknown, revoked, retired or expired
	CodeStore         Code = "ledger_unavailable"     // 503: our own store is away; nothing was sent
	CodeUpstream      Code = "upstream_unavailable"   // 502, 504: Stripe did not answer; what a POST did is unknown
	CodeUnsent        Code = "upstream_unreachable"   // 502: Stripe could not be asked; nothing was executed
)

func allowed(reason string) Verdict { return Verdict{Allow: true, Reason: reason} }

// Refuse is the verdict against a call.
func Refuse(status int, code Code, format string, args ...any) Verdict {
	return Verdict{Status: status, Code: code, Reason: fmt.Sprintf(format, args...)}
}

// Book is what a vault key has promised and spent in one currency and window,
// in minor units. Caps and sums are never negative.
type Book struct {
	Cap, Held, Spent int64
	Ceiling          int64 // of one charge; 0: none
	Count, CountCap  int64 // charges held or spent, over all currencies; CountCap 0: none
}

// Room is what is left, 0 at least.
func (b Book) Room() int64 {
	if b.Held > math.MaxInt64-b.Spent || b.Held+b.Spent >= b.Cap {
		return 0
	}
	return b.Cap - b.Held - b.Spent
}

// Decide says whether amount may be reserved.
func (b Book) Decide(amount int64) Verdict {
	switch room := b.Room(); {
	case amount <= 0:
		return Refuse(http.StatusForbidden, CodeParameter, "the amount must be positive")
	case b.Ceiling > 0 && amount > b.Ceiling:
		return Refuse(http.StatusForbidden, CodeCeiling, "%d asked; one charge may have %d", amount, b.Ceiling)
	case b.CountCap > 0 && b.Count >= b.CountCap:
		return Refuse(http.StatusTooManyRequests, CodeCountExceeded, "%d of %d charges are made or held", b.Count, b.CountCap)
	case amount > room:
		return Refuse(http.StatusTooManyRequests, CodeCapExceeded, "%d asked; %d left of %d, %d spent and %d held", amount, room, b.Cap, b.Spent, b.Held)
	default:
		return allowed("within the cap")
	}
}
