// Package crashpoint holds the named points at which the money path may be made
// to die, and the rules that may be taken out of it, for `billingctl selftest`.
//
// A point is a line of the code: crashpoint.Reach("confirm.answered"). It costs
// one atomic load and does nothing, unless the process was armed when it
// started. Then it kills the process with SIGKILL, as a power cut would, or
// stops it with SIGSTOP, as a machine that freezes would, at the n-th time the
// line is reached. Nothing is deferred, flushed or answered: what is left is
// what the crash table of package sagas says.
//
// Arming comes by environment, never by flag, and billingd refuses it together
// with a live key or with a Stripe that is not on this machine:
//
//	BILLING_CRASH=confirm.answered:3          killed at the third answer to a confirm
//	BILLING_CRASH=claim.committed:1:stop      frozen once its first claim is durable
//	BILLING_BREAK=write_once                  one rule less: the selftest must then find a double or a loss
//
// Several points are separated by commas. [Points] lists them, with the moment
// that each one names; [Rules] lists what can be taken out.
package crashpoint
