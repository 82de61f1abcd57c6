package main

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/cmd/billingd/internal/api"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/stripegateway"
)

// refundsAtOnce is enough: refunds are few, and each is a person's decision.
const refundsAtOnce = 4

// openNews makes what takes in and looks for news of Stripe, and what gives
// money back: the inbox, the reconciler, the refund worker and the webhook
// endpoint.
func (a *App) openNews(d *commands.Dispatcher, gateway *stripegateway.Gateway, clock *sagas.Clock, registry *prometheus.Registry) (hooks api.Webhooks, err error) {
	counted := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "billonce", Name: "webhooks_total",
		Help: "Stripe's events, by type and by what became of them: stored, duplicate, repeated, unknown_kind, other_version, applied, deferred, failed; or why they were not stored.",
	}, []string{"type", "result"})
	if err := registry.Register(counted); err != nil {
		return hooks, err
	}
	count := func(kind, result string) { counted.WithLabelValues(kindLabel(kind), result).Inc() }
	a.inbox, err = sagas.NewInbox(sagas.InboxConfig{
		APIVersion: stripegateway.APIVersion, Poll: a.settings.Poll, Actor: "inbox", Count: count, Resolve: a.collector.Wake,
	}, d, a.log)
	if err != nil {
		return hooks, err
	}
	a.reconcile, err = sagas.NewReconciler(sagas.ReconcilerConfig{
		Every: a.settings.ReconcileEvery, Poll: a.settings.Poll, Allowance: a.allowance, Actor: "reconciler",
	}, d, gateway, gateway, a.inbox, clock, a.log)
	if err != nil {
		return hooks, err
	}
	a.refunds, err = sagas.NewRefunds(sagas.RefundsConfig{
		Concurrency: refundsAtOnce, Timeout: a.settings.StripeTimeout, Lease: a.settings.Lease, Poll: a.settings.Poll, Actor: "refunds",
		Ready: a.mayCallStripe, Allowance: a.allowance,
	}, d, gateway, clock, a.log)
	if err != nil {
		return hooks, err
	}
	hooks = api.Webhooks{Parse: a.parseNews, Store: a.inbox.Store, Count: count}
	if secrets := a.settings.WebhookSecret; !secrets.IsZero() {
		hooks.Verify = func(payload []byte, header string) error {
			return stripegateway.VerifySignature(payload, header, strings.Split(secrets.Reveal(), ","), time.Now())
		}
	}
	return hooks, nil
}

// parseNews reads an event. One of a kind that is acted on, but whose object
// cannot be read, one of a connected account, and a test's beside a live key, or
// the other way round, are kept and not acted on.
func (a *App) parseNews(payload []byte) (sagas.News, error) {
	n, err := stripegateway.ParseNews(payload)
	if errors.Is(err, stripegateway.ErrEventObject) {
		a.log.Error("an event's object cannot be read; it is kept, and what it tells is left to the reconciler", "event", n.EventID, "type", n.Type, "version", n.APIVersion)
		n.Charge, n.Refund, n.Dispute, err = nil, nil, nil, nil
	}
	var whose struct {
		Account string `json:"account"`
	}
	if err == nil && json.Unmarshal(payload, &whose) == nil && whose.Account != "" {
		a.log.Error("an event of a connected account is kept and not acted on", "event", n.EventID, "type", n.Type)
		n.Charge, n.Refund, n.Dispute = nil, nil, nil
	}
	if live, known := a.settings.Live(); err == nil && known && live != n.Live {
		a.log.Error("an event of the other mode than the Stripe key's is kept and not acted on", "event", n.EventID, "type", n.Type, "live", n.Live)
		n.Charge, n.Refund, n.Dispute = nil, nil, nil
	}
	return n, err
}

// kindLabel is an event's type as a label: of those that Billonce does not act
// on there are too many.
func kindLabel(kind string) string {
	switch family, _, _ := strings.Cut(kind, "."); family {
	case "":
		return "none"
	case "charge", "payment_intent", "refund":
		return kind
	}
	return "other"
}
