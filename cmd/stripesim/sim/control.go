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
//	POST   /control/charges      {"customer", "amount", "currency", "metadata", "created", "with_intent"}: plants a charge
//	GET    /control/customers/{id}
//	PUT    /control/customers/{id}   {"card": "good" | decline code | "", "detached": true, "deleted": true}; POST too
//	POST   /control/intents/{id}/authenticate   {"result": "succeed" | "fail"}: the customer answers requires_action
//	GET    /control/keys?key=    what is kept under a key
//	DELETE /control/keys?key=    forgets it; all without key
//	POST   /control/reset        the account as new
//	POST   /control/webhooks     501: not in this version
func (s *Sim) Control(token string) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer, err := f(r)
			if err != nil {
				s.refuse(w, err)
				return
			}
			s.reply(w, http.StatusOK, answer)
		})
	}
	mux.HandleFunc("GET /control/clock", func(w http.ResponseWriter, _ *http.Request) { s.showClock(w) })
	mux.HandleFunc("POST /control/clock", func(w http.ResponseWriter, r *http.Request) {
		if err := s.turnClock(r); err != nil {
			s.refuse(w, err)
			return
		}
		s.showClock(w)
	})
	handle("GET /control/faults", func(*http.Request) (any, error) { return map[string]any{"faults": wireFaults(s.Faults())}, nil })
	handle("POST /control/faults", s.armFaults)
	handle("DELETE /control/faults", func(*http.Request) (any, error) { s.ClearFaults(""); return struct{}{}, nil })
	handle("DELETE /control/faults/{id}", func(r *http.Request) (any, error) {
		if !s.ClearFaults(r.PathValue("id")) {
			return nil, ErrNoSuchObject
		}
		return struct{}{}, nil
	})
	handle("GET /control/ledger", s.showLedger)
	handle("GET /control/requests", s.showRequests)
	handle("GET /control/counters", func(*http.Request) (any, error) { return s.Counters(), nil })
	handle("GET /control/settings", func(*http.Request) (any, error) { return showSettings(s.Settings()), nil })
	handle("POST /control/settings", s.changeSettings)
	handle("POST /control/charges", s.plant)
	handle("GET /control/customers/{id}", func(r *http.Request) (any, error) {
		return wireCustomer(s.Customer(r.PathValue("id"))), nil
	})
	setCustomer := func(r *http.Request) (any, error) {
		var body wireCustomer
		if err := decode(r, &body); err != nil {
			return nil, err
		}
		return body, s.SetCustomer(r.PathValue("id"), CustomerState(body))
	}
	handle("PUT /control/customers/{id}", setCustomer)
	handle("POST /control/customers/{id}", setCustomer)
	handle("POST /control/intents/{id}/authenticate", s.controlAuthenticate)
	handle("GET /control/keys", func(r *http.Request) (any, error) {
		state, ok := s.Key(r.URL.Query().Get("key"))
		if !ok {
			return nil, ErrNoSuchObject
		}
		return state, nil
	})
	handle("DELETE /control/keys", func(r *http.Request) (any, error) {
		return map[string]int{"forgotten": s.ForgetKeys(r.URL.Query().Get("key"))}, nil
	})
	handle("POST /control/reset", func(*http.Request) (any, error) { return struct{}{}, s.Reset() })
	mux.HandleFunc("/control/webhooks", func(w http.ResponseWriter, _ *http.Request) {
		s.reply(w, http.StatusNotImplemented, refusal("webhooks are not available in this version"))
	})
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

func (s *Sim) showRequests(r *http.Request) (any, error) {
	q, limit, err := queryOf(r, "method", "path", "key", "customer", "after")
	if err != nil {
		return nil, err
	}
	after := int64(0)
	if text := q("after"); text != "" {
		n, ok := parseInteger(text)
		if !ok {
			return nil, fmt.Errorf("after must be a seq, not %q", text)
		}
		after = n
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
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	p := Plant{
		Customer: body.Customer, Amount: body.Amount, Currency: body.Currency, Metadata: body.Metadata,
		Description: body.Description, TransferGroup: body.TransferGroup, WithIntent: body.WithIntent,
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
