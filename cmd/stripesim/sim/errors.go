package sim

import "fmt"

// apiError is an error in Stripe's shape. What it carries decides which fields
// of the error object are present.
type apiError struct {
	status      int
	kind        string // the error object's type
	code        string
	message     string
	param       string
	declineCode string
	charge      string
	intent      *intent
	method      *paymentMethod
	setup       *setupIntent
}

// Error types of Stripe.
const (
	invalidRequest   = "invalid_request_error"
	cardError        = "card_error"
	idempotencyError = "idempotency_error"
	internalError    = "api_error"
)

func (e *apiError) Error() string { return e.message }

// response renders the error. Fields stand in alphabetical order, as Stripe
// prints them.
func (e *apiError) response() response {
	o := make(out, 0, 512)
	o.lit(`{"error":{`)
	if e.charge != "" {
		o.lit(`"charge":`).str(e.charge).lit(`,`)
	}
	if e.code != "" {
		o.lit(`"code":`).str(e.code).lit(`,`)
	}
	if e.declineCode != "" {
		o.lit(`"decline_code":`).str(e.declineCode).lit(`,`)
	}
	if e.code != "" {
		o.lit(`"doc_url":`).str("https://stripe.com/docs/error-codes/" + dashes(e.code)).lit(`,`)
	}
	o.lit(`"message":`).str(e.message).lit(`,`)
	if e.param != "" {
		o.lit(`"param":`).str(e.param).lit(`,`)
	}
	if e.intent != nil {
		o.lit(`"payment_intent":`)
		e.intent.render(&o, expansion{})
		o.lit(`,`)
	}
	if e.method != nil {
		o.lit(`"payment_method":`)
		e.method.render(&o)
		o.lit(`,`)
	}
	if e.setup != nil {
		o.lit(`"setup_intent":`)
		e.setup.render(&o, expansion{})
		o.lit(`,`)
	}
	o.lit(`"type":`).str(e.kind).lit(`}}`)
	return response{status: e.status, body: o}
}

// invalid is a validation error: the request never began to execute.
func invalid(param, code, message string) *apiError {
	return &apiError{status: 400, kind: invalidRequest, code: code, param: param, message: message}
}

// missing says that the object a request's path names does not exist.
func missing(noun, param, id string) *apiError {
	return &apiError{
		status: 404, kind: invalidRequest, code: "resource_missing", param: param,
		message: fmt.Sprintf("No such %s: '%s'", noun, id),
	}
}

// missingParam says that an object named by a parameter does not exist.
func missingParam(noun, param, id string) *apiError {
	e := missing(noun, param, id)
	e.status = 400
	return e
}

// unexpectedState refuses an action that the intent's status does not allow and
// shows the intent, so that the caller can adopt what it finds.
func unexpectedState(p *intent, message string) *apiError {
	return &apiError{
		status: 400, kind: invalidRequest, code: "payment_intent_unexpected_state",
		message: message, intent: p,
	}
}

func keyMismatch(key string) *apiError {
	return &apiError{
		status: 400, kind: idempotencyError,
		message: fmt.Sprintf("Keys for idempotent requests can only be used with the same parameters they were first used with. Try using a key other than '%s' if you meant to execute a different request.", key),
	}
}

func keyOtherEndpoint(key, path, first string) *apiError {
	return &apiError{
		status: 400, kind: idempotencyError,
		message: fmt.Sprintf("Keys for idempotent requests can only be used for the same endpoint they were first used for ('%s' vs '%s'). Try using a key other than '%s' if you meant to execute a different request.", path, first, key),
	}
}

func keyInUse(key string) *apiError {
	return &apiError{
		status: 409, kind: invalidRequest, code: "idempotency_key_in_use",
		message: fmt.Sprintf("There is currently another in-progress request using this Idempotent Key (that probably means you submitted twice, and the other request is still going through): %s. Please try again later.", key),
	}
}

func rateLimited() *apiError {
	return &apiError{
		status: 429, kind: invalidRequest, code: "rate_limit",
		message: "Request rate limit exceeded. Learn more about rate limits at https://stripe.com/docs/rate-limits.",
	}
}

func lockTimeout() *apiError {
	return &apiError{
		status: 429, kind: invalidRequest, code: "lock_timeout",
		message: "This object cannot be accessed right now because another API request or Stripe process is currently accessing it. If you see this error intermittently, retry the request. If you see this error frequently and are making multiple concurrent requests to a single object, make your requests serially or at a lower rate.",
	}
}

func unknownURL(method, path string) *apiError {
	return &apiError{
		status: 404, kind: invalidRequest,
		message: fmt.Sprintf("Unrecognized request URL (%s: %s). Please see https://stripe.com/docs or we can help at https://support.stripe.com/.", method, path),
	}
}

func internal500() *apiError {
	return &apiError{
		status: 500, kind: internalError,
		message: "An unknown error occurred. Check https://status.stripe.com for more information.",
	}
}

// dashes turns an error code into the name of its documentation page.
func dashes(code string) string {
	b := []byte(code)
	for i := range b {
		if b[i] == '_' {
			b[i] = '-'
		}
	}
	return string(b)
}
