package sagas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Inbox takes in what Stripe tells. An event is stored before it is answered,
// and applied from the table by whichever replica comes first: in any order,
// as often as it is told, before or after our own call was answered.
//
// What an event may do is bound by what it proves. A success is recorded,
// whatever state its bill is in. A failure decides nothing: an event shows what
// the intent was when it was written, and may be of an attempt long past, so it
// only makes the collector read the intent now. A bill that is paid stays paid.
type Inbox struct {
	config InboxConfig
	pool   *pgxpool.Pool
	d      *commands.Dispatcher
	log    *slog.Logger
	meta   eventstore.Meta
	wake   chan struct{}
}

// InboxConfig sets up an inbox.
type InboxConfig struct {
	APIVersion string        // that payloads are read by; news of another is applied all the same, and alarmed
	Poll       time.Duration // how often the table is looked at when nobody says that there is news
	Actor      string        // recorded with every fact
	// Count counts an event by its type and by what became of it: stored,
	// duplicate, repeated, unknown_kind, other_version, applied, deferred or failed.
	Count func(kind, result string)
	// Resolve says that the collector has something to read.
	Resolve func()
}

// NewInbox makes an inbox; Run applies what it holds.
func NewInbox(config InboxConfig, d *commands.Dispatcher, log *slog.Logger) (*Inbox, error) {
	if config.Poll <= 0 || config.Count == nil || config.Resolve == nil || config.APIVersion == "" {
		return nil, errors.New("inbox: it needs an API version, a positive poll interval, a count and a collector to tell")
	}
	return &Inbox{config: config, pool: d.Log().Pool(), d: d, log: log, meta: eventstore.Meta{Actor: config.Actor}, wake: make(chan struct{}, 1)}, nil
}

// The states of news.
const (
	newsReceived = "received"
	newsApplied  = "applied"
	newsUnknown  = "unknown_kind"
	newsDeferred = "deferred" // it is not known which bill it is about
	newsFailed   = "failed"   // the last try failed; it is tried again
)

// toldBefore begins the note of an event that says what another one had said.
const toldBefore = "told before by "

// Stored is what became of an event that was handed in.
type Stored string

// The results. Of all of them the deliverer may be told that all is well.
const (
	StoredNew       Stored = "stored"
	StoredDuplicate Stored = "duplicate"    // this event was here before
	StoredRepeated  Stored = "repeated"     // another event had told the same of the same object; it is kept, too
	StoredUnknown   Stored = "unknown_kind" // of a type that this version does not act on
)

// Store keeps an event that was delivered. Once it returns without an error
// the event is durable; on an error the deliverer must deliver it again.
func (in *Inbox) Store(ctx context.Context, n News, payload []byte) (Stored, error) {
	results, err := in.store(ctx, domain.SourceWebhook, payload, n)
	if err != nil {
		return "", err
	}
	select {
	case in.wake <- struct{}{}:
	default:
	}
	return results[0], nil
}

// clientSecret is what lets a page of the shop act on an intent; Stripe sends it
// with every intent, and it is nobody's business here.
var clientSecret = regexp.MustCompile(`[A-Za-z]+_[A-Za-z0-9]+_secret_[A-Za-z0-9]+`)

// store keeps events in one statement. Payload is the first one's, if it was
// delivered.
func (in *Inbox) store(ctx context.Context, source domain.Source, payload []byte, all ...News) ([]Stored, error) {
	n := len(all)
	var (
		events, types, objects, says, versions, keys = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		intents, charges, customers, periods, states = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		lives, created, reduced, results             = make([]bool, n), make([]time.Time, n), make([]string, n), make([]Stored, n)
		index                                        = make(map[string]int, n)
	)
	for i, news := range all {
		text, err := json.Marshal(news)
		if err != nil {
			return nil, fmt.Errorf("store %s: %w", news.EventID, err)
		}
		events[i], types[i], objects[i], versions[i], keys[i] = news.EventID, news.Type, news.ObjectID, news.APIVersion, news.IdempotencyKey
		lives[i], created[i], reduced[i] = news.Live, news.Created, string(text)
		says[i], states[i], results[i] = news.says(), newsReceived, StoredDuplicate
		intents[i], charges[i] = news.ids()
		if !news.known() {
			states[i] = newsUnknown
		}
		if news.Charge != nil {
			if b, ok := billOf(*news.Charge); ok {
				customers[i], periods[i] = string(b.customer), b.period.String()
			}
		}
		index[news.EventID] = i
	}
	var delivered *string
	if payload != nil {
		text := strings.ToValidUTF8(string(payload), "\uFFFD") // the database takes nothing else, and nothing that is signed is worth losing
		text = clientSecret.ReplaceAllLiteralString(text, "not kept")
		delivered = &text
	}
	rows, err := in.pool.Query(ctx, `
		INSERT INTO webhook_inbox (event_id, type, object_id, says, api_version, live, created, idempotency_key, source, payload, news,
			intent_id, charge_id, customer_id, billing_period, state, note)
		SELECT event, type, object, says, version, live, created, nullif(key, ''), $1, $2::json, news::json,
			nullif(intent, ''), nullif(charge, ''), nullif(customer, ''), nullif(period, ''), state,
			(SELECT '`+toldBefore+`' || w.event_id FROM webhook_inbox w
			 WHERE w.object_id = u.object AND w.type = u.type AND w.says = u.says AND u.says <> '' AND w.event_id <> u.event LIMIT 1)
		FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bool[], $9::timestamptz[], $10::text[], $11::text[],
			$12::text[], $13::text[], $14::text[], $15::text[], $16::text[])
			AS u(event, type, object, says, version, live, created, key, news, intent, charge, customer, period, state)
		ORDER BY event
		ON CONFLICT (event_id) DO NOTHING
		RETURNING event_id, note IS NOT NULL`,
		source, delivered, events, types, objects, says, versions, lives, created, keys, reduced, intents, charges, customers, periods, states)
	if err != nil {
		return nil, fmt.Errorf("store %d events: %w", n, err)
	}
	defer rows.Close()
	for rows.Next() {
		var event string
		var repeated bool
		if err := rows.Scan(&event, &repeated); err != nil {
			return nil, fmt.Errorf("store %d events: %w", n, err)
		}
		i := index[event]
		switch {
		case states[i] == newsUnknown:
			results[i] = StoredUnknown
		case repeated:
			results[i] = StoredRepeated
		default:
			results[i] = StoredNew
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("store %d events: %w", n, err)
	}
	for i, news := range all {
		in.config.Count(news.Type, string(results[i]))
		if results[i] != StoredDuplicate && news.APIVersion != in.config.APIVersion {
			in.config.Count(news.Type, "other_version")
			in.log.Error("news of another API version: create the webhook endpoint anew with the version that this build reads",
				"event", news.EventID, "type", news.Type, "version", news.APIVersion, "reads", in.config.APIVersion)
		}
	}
	return results, nil
}

// known reports whether Billonce acts on news of this kind.
func (n News) known() bool { return n.Charge != nil || n.Refund != nil || n.Dispute != nil }

// says is what the news tells about its object: two events that say the same
// of one object are one piece of news.
func (n News) says() string {
	switch {
	case n.Charge != nil:
		refunded := ""
		if n.Charge.Refunded {
			refunded = "refunded"
		}
		return strings.Join([]string{n.Charge.Status, n.Charge.ChargeID, refunded}, " ")
	case n.Refund != nil:
		return strings.Join([]string{n.Refund.Status, n.Refund.Reason, n.Refund.Amount.String()}, " ")
	case n.Dispute != nil:
		return strings.Join([]string{n.Dispute.Status, n.Dispute.Reason, n.Dispute.Amount.String()}, " ")
	}
	return ""
}

// ids are the intent and the charge that the news is about.
func (n News) ids() (intent, charge string) {
	switch {
	case n.Charge != nil:
		return n.Charge.IntentID, n.Charge.ChargeID
	case n.Refund != nil:
		return n.Refund.IntentID, n.Refund.ChargeID
	case n.Dispute != nil:
		return n.Dispute.IntentID, n.Dispute.ChargeID
	}
	return "", ""
}

// billOf is the bill that an object's markers name. Markers that do not belong
// together are somebody else's.
func billOf(f Found) (bill, bool) {
	customer, err1 := domain.ParseCustomerID(f.CustomerID)
	period, err2 := domain.ParsePeriod(f.Period)
	if err1 != nil || err2 != nil || !period.Nameable() || f.BillingKey != string(domain.ChargeKey(customer, period, 1)) {
		return bill{}, false
	}
	return bill{customer, period}, true
}
