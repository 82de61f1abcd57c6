// Package admin is how people and billingd look after the spend proxy: an HTTP
// API over the ledger that issues vault keys, raises, extends, rotates and
// revokes them, takes a run's manifest, and reads the audit and the books.
//
// Two bearer tokens open it. The admin token may do everything; the service
// token, which billingd holds, may do what a run needs: issue the run's key
// with terms that are fixed here, extend it, register its manifest, and read
// runs' keys, the audit and the books. A token that is not set opens nothing,
// and whoever calls is told so; see [LoadTokens].
//
// Requests are read strictly: a path has one spelling, a field occurs once and
// is one that is known, amounts are whole minor units. A secret of a vault key
// is in one answer only, that of the call that made it; neither answers nor log
// lines hold one elsewhere.
//
// Errors are {"error":{"code","message","request_id"}}. Programs go by the code.
package admin
