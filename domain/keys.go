package domain

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// Key is a deterministic idempotency key, of a command or of a call to Stripe:
// 1 to 255 characters. It is a function of business identity alone; it never
// holds a random value, a clock, a host, a fence, a position or an attempt
// that was not recorded.
type Key string

// maxKeyLength is Stripe's limit (https://docs.stripe.com/api/idempotent_requests).
const maxKeyLength = 255

// ParseKey accepts a caller's key: 1 to 255 printable ASCII characters
// without spaces at its ends. The error is an invalid field Idempotency-Key.
func ParseKey(s string) (Key, error) {
	if s == "" || len(s) > maxKeyLength || strings.TrimSpace(s) != s {
		return "", InvalidField("Idempotency-Key", "must be 1 to 255 characters without spaces at its ends")
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return "", InvalidField("Idempotency-Key", "must be printable ASCII")
		}
	}
	return Key(s), nil
}

// KeyOf joins a command's name and the parts of its identity. Long parts
// (a caller's key may have 255 characters itself) are hashed so that the whole
// stays within 255 and still differs for different parts; no id can spell the
// hashed form, since ids hold no colon.
func KeyOf(command string, parts ...string) Key {
	s := command + "/" + strings.Join(parts, "/")
	if len(s) <= maxKeyLength {
		return Key(s)
	}
	return Key(command + "/sha256:" + hash(s))
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// ChargeKey is the key of the attempt-th charge of a bill, attempt counted
// from 1. The same bill has the same key on every path, at any time. The
// amount is not in it: amount and currency are frozen in the fact and compared
// as a fingerprint.
func ChargeKey(c CustomerID, p Period, attempt int) Key {
	s := string(c) + ":" + p.String() + ":axon-billing"
	if attempt > 1 {
		s += ":" + strconv.Itoa(attempt)
	}
	return Key(hash(s)[:32])
}

// CreateKey is the key under which the intentNo-th PaymentIntent of a bill is
// created. Stripe's key space is shared between endpoints, so it differs from
// the key of the confirm. Again counts creates that were answered by a 500,
// which Stripe stores and would replay for a day; an intent that such a create
// may have left behind is unconfirmed and moves no money.
func CreateKey(c CustomerID, p Period, intentNo, again int) Key {
	k := ChargeKey(c, p, 1) + "-intent"
	if intentNo > 1 {
		k += Key("-" + strconv.Itoa(intentNo))
	}
	return k.again(again)
}

// ConfirmKey is the key under which an attempt confirms the bill's intentNo-th
// PaymentIntent; again counts the confirms after a quiet period, since a
// stored 500 would be replayed under the former key.
func ConfirmKey(c CustomerID, p Period, attempt, intentNo, again int) Key {
	k := ChargeKey(c, p, attempt)
	if intentNo > 1 {
		k += Key("-i" + strconv.Itoa(intentNo))
	}
	return k.again(again)
}

// RefundKey is the key under which a refund of the bill's charge is asked for:
// a function of the caller's refund id, so that two equal refunds both work and
// a repeated one moves money once.
func RefundKey(c CustomerID, p Period, refundID string) Key {
	return ChargeKey(c, p, 1) + Key("-refund-"+hash(refundID)[:32])
}

func (k Key) again(n int) Key {
	if n > 0 {
		k += Key("-again-" + strconv.Itoa(n))
	}
	return k
}

// CancelKey is the key under which a PaymentIntent of the bill is cancelled.
func CancelKey(c CustomerID, p Period, intentID string) Key {
	return ChargeKey(c, p, 1) + Key("-cancel-"+intentID)
}
