package policy

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/billonce/billonce/domain"
)

// Judge says whether the rules of a key permit a call: its operation, its
// parameters and its expiry, at the business time now.
func (g Grant) Judge(c Call, now time.Time) Verdict {
	if !g.Expires.IsZero() && !now.Before(g.Expires) {
		return Refuse(http.StatusUnauthorized, CodeVaultKey, "the vault key has expired")
	}
	if !slices.Contains(g.Rules, c.Rule) {
		return Refuse(http.StatusForbidden, CodeRule, "no rule of the vault key permits %s", c.Rule)
	}
	known := operations[placeOf(c)].params
	for _, p := range c.Form {
		if !known.allows(p.Name) {
			return Refuse(http.StatusForbidden, CodeParameter, "the parameter %s is not permitted here", p.Name)
		}
		if strings.HasPrefix(p.Name, "expand[") {
			if v := g.expands(p.Value); !v.Allow {
				return v
			}
		}
	}
	switch {
	case g.Manifest && c.Rule == IntentsCreate && c.Confirms:
		return Refuse(http.StatusForbidden, CodeParameter, "a bill's intent is created first and confirmed by its id")
	case !g.Manifest && !c.Bill.IsZero() && (c.Rule == IntentsCreate || c.Rule == ChargesCreate):
		return billOfARun(c.Bill)
	case g.Manifest && c.Rule == RefundsCreate:
		return Refuse(http.StatusForbidden, CodeParameter, "a key with a manifest takes what its bills owe and gives nothing back")
	}
	return allowed("the rules permit it")
}

// JudgeUnbound judges a call of a key without a manifest for what it is known to
// be about: what carries a bill's markers is taken by the key of the bill's run
// alone, or another program could pay, block or falsify the bill.
func JudgeUnbound(c Call, known *Evidence) Verdict {
	if c.Rule == IntentsConfirm && known != nil && !known.Bill.IsZero() {
		return billOfARun(known.Bill)
	}
	return allowed("it is about no bill")
}

// JudgeDerived judges a call of a key without a manifest whose Idempotency-Key
// derives from the bill owner. Stripe's keys are one space: whoever sends a bill's
// key first, with whatever parameters, makes Stripe refuse the bill's own call. So
// such a key cancels an intent, or gives money of that bill back, and does nothing
// else. known is what a refund gives back of, nil while it is not known.
func JudgeDerived(c Call, owner BillID, known *Evidence) Verdict {
	switch charge := string(domain.ChargeKey(owner.Customer, owner.Period, 1)); {
	case c.Rule == IntentsCancel && c.Key == charge+"-cancel-"+c.Object:
	case c.Rule == RefundsCreate && strings.HasPrefix(c.Key, charge+"-refund-") && (known == nil || known.Bill == owner):
	default:
		return Refuse(http.StatusForbidden, CodeBill, "the Idempotency-Key derives from the bill %s, which only the key of its run may charge", owner)
	}
	return allowed("it is about the bill that its key derives from")
}

func billOfARun(b BillID) Verdict {
	return Refuse(http.StatusForbidden, CodeBill, "the markers customer_id and billing_period name the bill %s, which only the key of its run may charge", b)
}

// Yields tells whether a refusal gives way in the modes open and report. What
// cannot be read, another's bill, an invalid key and a store that is away bind in
// every mode.
func (v Verdict) Yields() bool {
	switch v.Code {
	case CodeCapExceeded, CodeCountExceeded, CodeCeiling, CodeRule, CodeParameter, CodeObligation, CodeMismatch, CodeKey,
		CodePaid, CodeInFlight, CodeCurrency:
		return true
	case CodeBill, CodeTarget, CodeRequest, CodeNoKey, CodeReused, CodeVaultKey, CodeStore, CodeUpstream, CodeUnsent:
	}
	return false
}

// expands judges what an answer is asked to show beside its object.
func (g Grant) expands(path string) Verdict {
	parts := strings.Split(path, ".")
	for _, part := range parts {
		rule, known := expansions[part]
		if !known || len(parts) > 4 {
			return Refuse(http.StatusForbidden, CodeParameter, "this expand is not permitted")
		}
		if rule != "" && !slices.Contains(g.Rules, rule) {
			return Refuse(http.StatusForbidden, CodeRule, "no rule of the vault key permits %s, which the expand needs", rule)
		}
	}
	return allowed("")
}

// placeOf finds a parsed call's operation again.
func placeOf(c Call) place {
	at := place{method: c.Method}
	var rest string
	at.resource, rest, at.id = strings.Cut(strings.TrimPrefix(c.Path, "/v1/"), "/")
	_, at.action, _ = strings.Cut(rest, "/")
	return at
}
