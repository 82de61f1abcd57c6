// Package proxy is the spend proxy's front: it speaks Stripe's API to callers
// that hold vault keys, and to Stripe with the one real key.
//
// A call's way, and where it may end:
//
//	target, headers   read as they came; only a canonical request passes      403 400 415
//	vault key         asked of the ledger each time                           401
//	body              64 KiB, five seconds, one form                           413 408 400
//	rules             policy.Grant.Judge                                      403
//	ledger.Begin      bill, cap, reservation, audit: one commit               403 429 400, or the answer of old
//	Stripe            sent once, read to the end, whatever the caller does    502 504
//	ledger.Finish     settled, released or held; then the caller is answered
//
// Reads need no reservation; what they show is observed, beside their answers
// and before the next POST is judged. Whatever fails closes:
// without the ledger nothing is forwarded (503), and a request that may have
// reached Stripe without an answer stays held until [Proxy.Run] or a later read
// finds out.
//
// # What passes
//
// Upward go method, path, parameters and Idempotency-Key, each written anew
// from what was read. Authorization is ours. Stripe-Version is pinned to
// [APIVersion], whatever the caller sends: evidence is read in one version.
// Stripe-Account, Stripe-Context and all other headers stay behind. Downward go
// status, body and the headers of [passed]; a redirect is not followed and not
// handed on.
//
// Denials have Stripe's error shape, a Request-Id of ours, and
// Stripe-Should-Retry: false, so that SDKs give up at once.
package proxy
