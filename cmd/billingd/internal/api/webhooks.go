package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/billonce/billonce/sagas"
)

// Webhooks is how Stripe's deliveries are judged and kept. Without Verify the
// endpoint is off.
type Webhooks struct {
	// Verify checks the Stripe-Signature header of a delivery over its raw body.
	Verify func(payload []byte, header string) error
	Parse  func(payload []byte) (sagas.News, error)
	// Store keeps an event. It must be durable when Store returns.
	Store func(ctx context.Context, n sagas.News, payload []byte) (sagas.Stored, error)
	// Count counts what was not stored, by why not.
	Count func(kind, result string)
}

// delivered is what a delivery is answered with. Stripe goes by the status.
type delivered struct {
	Event  string       `json:"event" example:"evt_1NxyzABC"`
	Result sagas.Stored `json:"result" enum:"stored,duplicate,repeated,unknown_kind"`
}

// Why a delivery is not taken. Which part of a signature is wrong is nobody's
// business.
var (
	errUnverified = errors.New("the delivery is not Stripe's, or not signed with a secret that is in use")
	errNotEvent   = errors.New("the body is not an event of Stripe's")
)

// registerWebhooks serves the endpoint that Stripe delivers to. A delivery
// needs no token: its signature says who sent it, by the secrets of the
// configuration alone.
func (s *Server) registerWebhooks(hooks Webhooks) {
	const path = "/webhooks/stripe"
	op := public("take-webhook", http.MethodPost, path, tagService, "Take an event that Stripe delivers")
	op.Description = "For Stripe alone. A delivery is stored before it is answered, and applied afterwards; the same again is answered the same. " +
		"Anything but 2xx makes Stripe deliver it again. Off, and 404, as long as STRIPE_WEBHOOK_SECRET is not set."
	op.Parameters = []*huma.Param{{Name: signatureHeader, In: "header", Required: true, Schema: &huma.Schema{Type: huma.TypeString},
		Description: "Stripe's signature of the raw body; it must be given once."}}
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: &huma.Schema{Type: huma.TypeObject, Description: "A Stripe event."}},
	}}
	op.Responses = map[string]*huma.Response{
		"200":     {Description: "It is stored, now or before.", Content: map[string]*huma.MediaType{"application/json": {Schema: s.schemaOf(delivered{}, "Delivered")}}},
		"default": s.problemResponse(),
	}
	s.handle(op, func(w http.ResponseWriter, r *http.Request) error {
		if hooks.Verify == nil {
			p := problem(http.StatusNotFound, "webhooks_off", "webhooks are off: STRIPE_WEBHOOK_SECRET is not set")
			p.close = true
			return p
		}
		payload, err := s.readBody(w, r)
		if err != nil {
			hooks.Count("", "unread")
			return err
		}
		given := r.Header.Values(signatureHeader)
		if len(given) != 1 || hooks.Verify(payload, given[0]) != nil {
			hooks.Count("", "unverified")
			return problem(http.StatusBadRequest, "webhook_refused", "%s", errUnverified)
		}
		news, err := hooks.Parse(payload)
		if err != nil {
			hooks.Count("", "unreadable")
			return problem(http.StatusBadRequest, "not_an_event", "%s", errNotEvent)
		}
		ctx, cancel := context.WithTimeout(r.Context(), s.limits.Dispatch)
		defer cancel()
		result, err := hooks.Store(ctx, news, payload)
		if err != nil {
			hooks.Count(news.Type, "not_stored")
			p := problem(http.StatusServiceUnavailable, "not_stored", "the event cannot be stored at the moment; deliver it again")
			p.retryAfter, p.cause = retryAfter, err
			return p
		}
		writeJSON(w, http.StatusOK, "application/json", delivered{news.EventID, result})
		return nil
	})
}

const signatureHeader = "Stripe-Signature"
