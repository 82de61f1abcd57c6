// Package api is the HTTP side of billingd: commands in, read models out.
//
// # Three kinds of routes
//
// Every command of the registry has an address of its own, POST
// /v1/commands/NAME, whose body is decoded by the registry itself and nowhere
// else; POST /v1/commands:batch takes them as a stream of lines. Reads are
// typed: the struct of a read's parameters and the struct of its answer are the
// documentation, too. What the service says of itself (/healthz, /readyz,
// /metrics, /openapi.json, /) needs no token, nor does POST /webhooks/stripe:
// the signature over its raw body says who sent it.
//
// All of them are huma operations, so that the OpenAPI document is made of what
// is served. The scope that an operation documents is the scope that is asked
// for, and a query parameter that it does not document is refused.
//
// # What every request goes through
//
//	ServeHTTP   request id, log line, metrics, panics; refuses work while draining
//	route       canonical paths only; 404 and 405 in the one shape of errors
//	authorize   the caller's token has the operation's scope
//	strict      known query parameters, each once; no body where none is taken
//	handler     reads the body, dispatches or reads, answers
//
// Every error is a [Problem]. Refusals of the domain become one in problemOf and
// nowhere else; whatever is not a refusal is answered in fixed words, and the
// log has the rest. No log line holds a body, a header's value (but the request
// id) or a setting.
//
// # A caller who hangs up
//
// Dispatching goes on without its caller: what has begun is decided, recorded
// and found under the command's key. Only waiting ends with the caller.
//
// # The feed
//
// GET /v1/events/stream (feed.go) reads the log a page at a time and writes each
// page before it reads the next, so the reader's pace is the feed's. Between two
// pages the only state is the reader's vector, which is also the id of what was
// written last.
//
// # Statuses
//
//	200  done; of charge-billing and retry-charge: the attempt has ended
//	202  recorded, and the attempt is under way or rests
//	400  cannot be read as asked; errors[] names the fields
//	401, 403  no known token; a token without the scope
//	404  no such address, command, customer, bill or run
//	408, 413, 415  the body is slow, large, compressed or of another type
//	409  clashes with what was recorded or is in flight
//	422  the state of the business forbids it
//	503  passes by itself: the very same request may be sent again
//	504  the read model does not contain after_position yet; as_of says what it does
package api
