package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// duration is a time.Duration written as text: "25h", "1m30s".
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = duration(parsed)
	return err
}

// moment is a time written as RFC 3339, or as Stripe does, in seconds since 1970.
type moment time.Time

func (m *moment) UnmarshalJSON(b []byte) error {
	if seconds, ok := parseInteger(string(b)); ok {
		*m = moment(time.Unix(seconds, 0).UTC())
		return nil
	}
	return json.Unmarshal(b, (*time.Time)(m))
}

// wireCustomer is a CustomerState as control writes it.
type wireCustomer struct {
	Card     string `json:"card"`
	Detached bool   `json:"detached"`
	Deleted  bool   `json:"deleted"`
}

// wireFault is a Fault as control writes it.
type wireFault struct {
	ID          string    `json:"id,omitempty"`
	Match       wireMatch `json:"match,omitzero"`
	Kind        Kind      `json:"fault,omitempty"`
	Times       int       `json:"times,omitempty"`
	Delay       duration  `json:"delay,omitzero"`
	For         duration  `json:"for,omitzero"`
	Code        string    `json:"code,omitempty"`
	Body        string    `json:"body,omitempty"`
	Close       string    `json:"close,omitempty"`
	Location    string    `json:"location,omitempty"`
	ShouldRetry *bool     `json:"should_retry,omitempty"`
	RetryAfter  int       `json:"retry_after,omitempty"`
	Seed        uint64    `json:"seed,omitempty"`
	Rate        float64   `json:"rate,omitempty"`
	Kinds       []Kind    `json:"faults,omitempty"`
	Hits        int       `json:"hits"`
}

type wireMatch struct {
	Method   string `json:"method,omitempty"`
	Path     string `json:"path,omitempty"`
	Customer string `json:"customer,omitempty"`
	Key      string `json:"key,omitempty"`
	Nth      int    `json:"nth,omitempty"`
}

func (f wireFault) fault() Fault {
	return Fault{
		ID: f.ID, Match: Match(f.Match), Kind: f.Kind, Times: f.Times, Delay: time.Duration(f.Delay), For: time.Duration(f.For),
		Code: f.Code, Body: f.Body, Close: f.Close, Location: f.Location, ShouldRetry: f.ShouldRetry, RetryAfter: f.RetryAfter,
		Seed: f.Seed, Rate: f.Rate, Kinds: f.Kinds, Hits: f.Hits,
	}
}

func wireFaults(faults []Fault) []wireFault {
	all := make([]wireFault, 0, len(faults))
	for _, f := range faults {
		all = append(all, wireFault{
			ID: f.ID, Match: wireMatch(f.Match), Kind: f.Kind, Times: f.Times, Delay: duration(f.Delay), For: duration(f.For),
			Code: f.Code, Body: f.Body, Close: f.Close, Location: f.Location, ShouldRetry: f.ShouldRetry, RetryAfter: f.RetryAfter,
			Seed: f.Seed, Rate: f.Rate, Kinds: f.Kinds, Hits: f.Hits,
		})
	}
	return all
}

// armFaults takes one fault or a list. Of a list with a bad one, none is armed.
func (s *Sim) armFaults(r *http.Request) (any, error) {
	var raw json.RawMessage
	if err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&raw); err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	if raw[0] != '[' {
		raw = append(append([]byte{'['}, raw...), ']')
	}
	var bodies []wireFault
	if err := strict(raw, &bodies); err != nil {
		return nil, err
	}
	var bad []error
	for i, body := range bodies {
		f := body.fault()
		if err := f.check(); err != nil {
			bad = append(bad, fmt.Errorf("fault %d: %w", i+1, err))
		}
	}
	if err := errors.Join(bad...); err != nil {
		return nil, err
	}
	armed := make([]Fault, 0, len(bodies))
	for _, body := range bodies {
		id, err := s.AddFault(body.fault())
		if err != nil {
			return nil, err
		}
		for _, f := range s.Faults() {
			if f.ID == id {
				armed = append(armed, f)
			}
		}
	}
	for _, f := range armed {
		s.log.Info("fault armed", "fault", f.String())
	}
	return map[string]any{"faults": wireFaults(armed)}, nil
}

// wireSettings are the switches as control writes them; absent ones stay.
type wireSettings struct {
	KeyRetention           *duration `json:"key_retention,omitempty"`
	Prune                  *Prune    `json:"prune,omitempty"`
	SearchLag              *duration `json:"search_lag,omitempty"`
	SearchRate             *float64  `json:"search_rate,omitempty"`
	RateLimit              *float64  `json:"rate_limit,omitempty"`
	EndpointRate           *float64  `json:"endpoint_rate,omitempty"`
	ConfirmLimit           *int      `json:"confirm_limit,omitempty"`
	LockWait               *duration `json:"lock_wait,omitempty"`
	PruneSeed              *uint64   `json:"prune_seed,omitempty"`
	ClockSkew              *duration `json:"clock_skew,omitempty"`
	SearchOutage           *bool     `json:"search_outage,omitempty"`
	RefundsPending         *bool     `json:"refunds_pending,omitempty"`
	WebhookTimeout         *duration `json:"webhook_timeout,omitempty"`
	WebhookRetry           *duration `json:"webhook_retry,omitempty"`
	RefuseUnknownCustomers *bool     `json:"refuse_unknown_customers,omitempty"`
	StoreValidationErrors  *bool     `json:"store_validation_errors,omitempty"`
	IgnoreKeys             *bool     `json:"ignore_keys,omitempty"`
	KeyPerPath             *bool     `json:"key_per_path,omitempty"`
}

func showSettings(set Settings) wireSettings {
	retention, lag, wait := duration(set.KeyRetention), duration(set.SearchLag), duration(set.LockWait)
	skew, patience, retry := duration(set.ClockSkew), duration(set.WebhookTimeout), duration(set.WebhookRetry)
	return wireSettings{
		KeyRetention: &retention, Prune: &set.Prune, SearchLag: &lag, SearchRate: &set.SearchRate, RateLimit: &set.RateLimit, EndpointRate: &set.EndpointRate,
		ConfirmLimit: &set.ConfirmLimit, LockWait: &wait, RefuseUnknownCustomers: &set.RefuseUnknownCustomers,
		PruneSeed: &set.PruneSeed, ClockSkew: &skew, SearchOutage: &set.SearchOutage, RefundsPending: &set.RefundsPending,
		WebhookTimeout: &patience, WebhookRetry: &retry,
		StoreValidationErrors: &set.StoreValidationErrors, IgnoreKeys: &set.IgnoreKeys, KeyPerPath: &set.KeyPerPath,
	}
}

func (s *Sim) changeSettings(r *http.Request) (any, error) {
	var body wireSettings
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	err := s.Configure(func(set *Settings) {
		patch((*time.Duration)(body.KeyRetention), &set.KeyRetention)
		patch(body.Prune, &set.Prune)
		patch((*time.Duration)(body.SearchLag), &set.SearchLag)
		patch(body.SearchRate, &set.SearchRate)
		patch(body.RateLimit, &set.RateLimit)
		patch(body.EndpointRate, &set.EndpointRate)
		patch(body.ConfirmLimit, &set.ConfirmLimit)
		patch((*time.Duration)(body.LockWait), &set.LockWait)
		patch(body.PruneSeed, &set.PruneSeed)
		patch((*time.Duration)(body.ClockSkew), &set.ClockSkew)
		patch(body.SearchOutage, &set.SearchOutage)
		patch(body.RefundsPending, &set.RefundsPending)
		patch((*time.Duration)(body.WebhookTimeout), &set.WebhookTimeout)
		patch((*time.Duration)(body.WebhookRetry), &set.WebhookRetry)
		patch(body.RefuseUnknownCustomers, &set.RefuseUnknownCustomers)
		patch(body.StoreValidationErrors, &set.StoreValidationErrors)
		patch(body.IgnoreKeys, &set.IgnoreKeys)
		patch(body.KeyPerPath, &set.KeyPerPath)
	})
	if err != nil {
		return nil, err
	}
	return showSettings(s.Settings()), nil
}

func patch[T any](given, field *T) {
	if given != nil {
		*field = *given
	}
}

// strict decodes JSON and refuses fields it does not know.
func strict(raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	return nil
}
