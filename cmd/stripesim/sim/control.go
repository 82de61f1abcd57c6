package sim

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Control is the handler of the control API. Every request must carry the token
// as a bearer token; an empty token lets everybody in, which is for loopback
// listeners only.
//
//	GET    /control/clock        {"now": RFC 3339 with nanoseconds, "offset": "25h0m0s"}
//	POST   /control/clock        {"advance": "25h"} or {"set": "2026-11-01T00:00:00Z"}; times also as seconds since 1970
//	GET    /control/faults       the armed faults with their hits
//	POST   /control/faults       one fault, or a list of them
//	DELETE /control/faults       disarms all; /control/faults/{id} one
//	GET    /control/ledger       every movement; ?customer= &payment_intent= &key= &status= &after= &limit=
//	GET    /control/requests     every request; ?method= &path= &key= &customer= &after= &limit= (1,000 unless given)
//	GET    /control/counters
//	GET    /control/settings     the switches
//	POST   /control/settings     changes those that are named
//	POST   /control/charges      {"customer", "amount", "currency", "metadata", "created", "with_intent", "silent"}: plants a charge; silent: no events
//	GET    /control/disputes     every dispute
//	POST   /control/disputes     {"charge", "amount", "reason", "status"}: opens one; {"dispute", "status"}: moves it
//	GET    /control/refunds      every refund
//	POST   /control/refunds      {"refund", "status", "failure_reason"}: moves one; {"charge", "amount", "status", "metadata"}: makes one that no request asked for
//	GET    /control/customers/{id}
//	PUT    /control/customers/{id}   {"card": "good" | decline code | "", "detached": true, "deleted": true}; POST too
//	POST   /control/intents/{id}/authenticate   {"result": "succeed" | "fail"}: the customer answers requires_action
//	GET    /control/keys?key=    what is kept under a key
//	DELETE /control/keys?key=    forgets it; all without key
//	POST   /control/reset        the account as new
//	GET    /control/webhooks     endpoint, rules and deliveries; ?event= &object= &type= &state= &after= &limit=
//	PUT    /control/webhooks     {"url", "secret"}: the endpoint from now on; an empty url: none
//	POST   /control/webhooks     {"action": "replay", "event" | "since", "type", "customer"}: sends events again;
//	                             {"action": "release"}: sends what is held;
//	                             {"action": a webhook fault, "type", "customer", "times", "delay", "age", "version", "account"}: arms it
//	DELETE /control/webhooks     disarms all webhook faults, sends what they held; /control/webhooks/{id} one
//	GET    /control/snapshot     everything that is remembered, as bytes
//	POST   /control/restore      takes them back; ?clock=keep: but not the clock
func (s *Sim) Control(token string) http.Handler {
	mux := http.NewServeMux()
	for pattern, handle := range s.controls() {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer, err := handle(r)
			if err != nil {
				s.refuse(w, err)
				return
			}
			if send, ok := answer.(func(http.ResponseWriter)); ok {
				send(w)
				return
			}
			s.reply(w, http.StatusOK, answer)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.reply(w, http.StatusNotFound, refusal("no such control route: "+r.Method+" "+r.URL.Path))
	})
	if token == "" {
		return mux
	}
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(given))
		if !ok || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			s.reply(w, http.StatusUnauthorized, refusal("the control token is missing or wrong"))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// controls is the table of the control API. A handler's answer is sent as JSON;
// one that is a function sends itself.
func (s *Sim) controls() map[string]func(*http.Request) (any, error) {
	return map[string]func(*http.Request) (any, error){
		"GET /control/clock":  func(*http.Request) (any, error) { return s.showClock, nil },
		"POST /control/clock": func(r *http.Request) (any, error) { return s.showClock, s.turnClock(r) },

		"GET /control/faults":    func(*http.Request) (any, error) { return map[string]any{"faults": wireFaults(s.Faults())}, nil },
		"POST /control/faults":   s.armFaults,
		"DELETE /control/faults": func(*http.Request) (any, error) { s.ClearFaults(""); return struct{}{}, nil },
		"DELETE /control/faults/{id}": func(r *http.Request) (any, error) {
			return struct{}{}, found(s.ClearFaults(r.PathValue("id")))
		},

		"GET /control/ledger":    s.showLedger,
		"GET /control/requests":  s.showRequests,
		"GET /control/counters":  func(*http.Request) (any, error) { return s.Counters(), nil },
		"GET /control/settings":  func(*http.Request) (any, error) { return showSettings(s.Settings()), nil },
		"POST /control/settings": s.changeSettings,

		"POST /control/charges":  s.plant,
		"GET /control/disputes":  func(*http.Request) (any, error) { return map[string]any{"disputes": s.Disputes()}, nil },
		"POST /control/disputes": s.changeDispute,
		"GET /control/refunds":   func(*http.Request) (any, error) { return map[string]any{"refunds": s.Refunds()}, nil },
		"POST /control/refunds":  s.changeRefund,
		"GET /control/customers/{id}": func(r *http.Request) (any, error) {
			return wireCustomer(s.Customer(r.PathValue("id"))), nil
		},
		"PUT /control/customers/{id}":             s.changeCustomer,
		"POST /control/customers/{id}":            s.changeCustomer,
		"POST /control/intents/{id}/authenticate": s.controlAuthenticate,

		"GET /control/keys": func(r *http.Request) (any, error) {
			state, ok := s.Key(r.URL.Query().Get("key"))
			return state, found(ok)
		},
		"DELETE /control/keys": func(r *http.Request) (any, error) {
			return map[string]int{"forgotten": s.ForgetKeys(r.URL.Query().Get("key"))}, nil
		},

		"GET /control/webhooks":         s.showWebhooks,
		"POST /control/webhooks":        s.changeWebhooks,
		"PUT /control/webhooks":         s.changeEndpoint,
		"DELETE /control/webhooks":      func(*http.Request) (any, error) { s.ClearWebhookRules(""); return struct{}{}, nil },
		"DELETE /control/webhooks/{id}": func(r *http.Request) (any, error) { return struct{}{}, found(s.ClearWebhookRules(r.PathValue("id"))) },

		"GET /control/snapshot": s.showSnapshot,
		"POST /control/restore": s.restoreSnapshot,
		"POST /control/reset":   func(*http.Request) (any, error) { return struct{}{}, s.Reset() },
	}
}

func found(ok bool) error {
	if ok {
		return nil
	}
	return ErrNoSuchObject
}

func refusal(message string) any {
	return map[string]any{"error": map[string]string{"message": message}}
}

func (s *Sim) refuse(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	if errors.Is(err, ErrNoSuchObject) {
		status = http.StatusNotFound
	}
	s.reply(w, status, refusal(err.Error()))
}

func (s *Sim) reply(w http.ResponseWriter, status int, answer any) {
	if err := s.Err(); err != nil {
		status, answer = http.StatusInternalServerError, refusal(err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer) //nolint:errcheck // the client may have gone
}

// decode reads a JSON body strictly: unknown fields and trailing data are
// refused.
func decode(r *http.Request, into any) error {
	d := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("read body: more than one JSON value")
	}
	return nil
}

// showClock is what services that follow this clock poll, so it is cheap.
func (s *Sim) showClock(w http.ResponseWriter) {
	b := make([]byte, 0, 96)
	b = append(b, `{"now":"`...)
	b = s.Now().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","offset":"`...)
	b = append(b, s.Offset().String()...)
	b = append(b, "\"}\n"...)
	w.Header()["Content-Type"] = []string{"application/json"}
	w.Write(b) //nolint:errcheck // the client may have gone
}

func (s *Sim) turnClock(r *http.Request) error {
	var body struct {
		Advance *duration `json:"advance"`
		Set     *moment   `json:"set"`
	}
	if err := decode(r, &body); err != nil {
		return err
	}
	switch {
	case body.Advance != nil && body.Set == nil:
		s.Advance(time.Duration(*body.Advance))
	case body.Set != nil && body.Advance == nil:
		s.SetClock(time.Time(*body.Set))
	default:
		return errors.New(`give either "advance" or "set"`)
	}
	return nil
}

func (s *Sim) showLedger(r *http.Request) (any, error) {
	q, limit, err := queryOf(r, "customer", "payment_intent", "key", "status", "after")
	if err != nil {
		return nil, err
	}
	return map[string]any{"movements": s.LedgerWhere(LedgerFilter{
		Customer: q("customer"), Intent: q("payment_intent"), Key: q("key"), Status: q("status"), After: q("after"), Limit: limit,
	})}, nil
}

// seqOf reads the place that a list goes on behind; empty: from its beginning.
func seqOf(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, ok := parseInteger(text)
	if !ok {
		return 0, fmt.Errorf("after must be a seq, not %q", text)
	}
	return n, nil
}

func (s *Sim) showRequests(r *http.Request) (any, error) {
	q, limit, err := queryOf(r, "method", "path", "key", "customer", "after")
	if err != nil {
		return nil, err
	}
	after, err := seqOf(q("after"))
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = 1000
	}
	found, err := s.RequestsWhere(RequestFilter{Method: q("method"), Path: q("path"), Key: q("key"), Customer: q("customer"), After: after, Limit: limit})
	if err != nil {
		return nil, err
	}
	return map[string]any{"requests": found}, nil
}

// queryOf reads query parameters and refuses unknown ones; limit is always
// allowed.
func queryOf(r *http.Request, names ...string) (get func(string) string, limit int, err error) {
	q := r.URL.Query()
	for name := range q {
		known := name == "limit"
		for _, n := range names {
			known = known || n == name
		}
		if !known {
			return nil, 0, fmt.Errorf("unknown query parameter %q", name)
		}
	}
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			return nil, 0, fmt.Errorf("limit must be a number above 0, not %q", text)
		}
	}
	return q.Get, limit, nil
}

func (s *Sim) plant(r *http.Request) (any, error) {
	var body struct {
		Customer      string            `json:"customer"`
		Amount        int64             `json:"amount"`
		Currency      string            `json:"currency"`
		Metadata      map[string]string `json:"metadata"`
		Created       *moment           `json:"created"`
		Description   string            `json:"description"`
		TransferGroup string            `json:"transfer_group"`
		WithIntent    bool              `json:"with_intent"`
		Silent        bool              `json:"silent"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	p := Plant{
		Customer: body.Customer, Amount: body.Amount, Currency: body.Currency, Metadata: body.Metadata,
		Description: body.Description, TransferGroup: body.TransferGroup, WithIntent: body.WithIntent, Silent: body.Silent,
	}
	if body.Created != nil {
		p.Created = time.Time(*body.Created)
	}
	return s.PlantCharge(p)
}

func (s *Sim) controlAuthenticate(r *http.Request) (any, error) {
	var body struct {
		Result string `json:"result"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	if body.Result != "succeed" && body.Result != "fail" {
		return nil, errors.New(`result must be "succeed" or "fail"`)
	}
	return struct{}{}, s.Authenticate(r.PathValue("id"), body.Result == "succeed")
}
