package stripegateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/stripe/stripe-go/v76"
)

// answer is what came back from a call, reduced to what the outcome table may
// know. It holds no text of Stripe's, no secret and no body.
type answer struct {
	fault  fault
	why    string // for a fault: which, in our words
	status int    // 0: no answer

	kind, code, declineCode, param string // of the error, as Stripe spells them
	chargeID                       string
	noMethod                       bool // the refusal is about the payment method, or the customer it belongs to
	tooLarge                       bool // the refusal is about a refund of more than is left
	chargeStatus                   string

	intent *intent // the answer, or the one inside the error

	replayed   bool
	shouldTry  string // Stripe-Should-Retry
	retryAfter int    // seconds
	requestID  string
}

// fault is how a call failed to bring an answer.
type fault string

const (
	noFault    fault = ""
	violated   fault = "violated"   // refused by our own checks before a byte left
	unsent     fault = "unsent"     // no byte of the body left
	lost       fault = "lost"       // sent, and the answer did not arrive
	unreadable fault = "unreadable" // an answer that is not Stripe's
)

// answer puts together what the wire saw and what stripe-go made of it.
func (c *call) answer(err error) answer {
	a := answer{
		status: c.status, requestID: c.requestID, replayed: c.replayed,
		shouldTry: c.shouldTry, retryAfter: c.retryAfter,
	}
	switch {
	case c.violation != "":
		a.fault, a.why = violated, c.violation
		return a
	case !c.begun:
		a.fault, a.why = violated, "the library did not make the request"
		return a
	case c.status == 0:
		a.fault, a.why = lost, describe(err)
		if c.sent != nil && c.sent.seal() {
			a.fault = unsent
		}
		return a
	case c.bodyErr != nil:
		a.fault, a.why = lost, describe(c.bodyErr)
		return a
	}
	if c.status < 400 {
		if err != nil {
			a.fault, a.why = unreadable, "the answer is not JSON"
		}
		return a
	}
	e, ok := errors.AsType[*stripe.Error](err)
	if !ok {
		a.fault, a.why = unreadable, "the error is not in Stripe's form"
		return a
	}
	a.kind, a.code, a.declineCode, a.param = plain(string(e.Type)), plain(string(e.Code)), plain(string(e.DeclineCode)), plain(e.Param)
	a.chargeID = chargeID(e.ChargeID)
	a.intent = embedded(e.PaymentIntent)
	a.noMethod = lacksMethod(a, e.Msg)
	a.tooLarge = a.code == "" && strings.Contains(e.Msg, wordsOfTooLarge)
	return a
}

// lacksMethod tells whether a refusal means that there is nothing to charge:
// the method is gone, detached or another customer's, or the customer is
// deleted. Stripe gives a code for some of them only.
func lacksMethod(a answer, message string) bool {
	switch a.code {
	case "payment_method_unexpected_state", "missing":
		return true
	case "resource_missing":
		return a.param == "payment_method" || a.param == "customer" || a.param == "source"
	case "":
		return a.param == "payment_method" ||
			strings.HasPrefix(message, "No such PaymentMethod") || strings.HasPrefix(message, "No such customer")
	}
	return false
}

// describe says what went wrong on the way, in words of our own: an error's
// text may quote what was sent.
func describe(err error) string {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case err == nil:
		return "no answer"
	case errors.Is(err, context.Canceled):
		return "the call was cancelled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "the call timed out"
	case errors.Is(err, errTooLong):
		return "the answer is too long"
	case errors.As(err, &dns):
		return "the host was not found"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the connection was reset"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the answer was cut off"
	case errors.Is(err, io.EOF):
		return "the connection was closed before the answer"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the server's certificate was not accepted"
	}
	return "the connection failed"
}

// evidence is what can be shown of an answer: statuses, codes and ids.
func (a answer) evidence(in *intent) string {
	var b strings.Builder
	add := func(name, value string) {
		if value == "" {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(name)
		b.WriteByte('=')
		b.WriteString(value)
	}
	if a.status != 0 {
		add("status", strconv.Itoa(a.status))
	}
	add("type", a.kind)
	add("code", a.code)
	add("decline_code", a.declineCode)
	add("param", a.param)
	if in != nil {
		add("intent", intentID(in.ID))
		add("intent_status", plain(in.Status))
		add("charge", in.chargeID())
	} else {
		add("charge", a.chargeID)
		add("charge_status", a.chargeStatus)
	}
	if a.replayed {
		add("replayed", "true")
	}
	add("request", a.requestID)
	return b.String()
}
