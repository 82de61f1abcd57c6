package sim

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// wireRule is a WebhookRule as control writes it.
type wireRule struct {
	ID       string       `json:"id"`
	Action   WebhookFault `json:"action"`
	Type     string       `json:"type,omitempty"`
	Customer string       `json:"customer,omitempty"`
	Times    int          `json:"times"`
	Delay    duration     `json:"delay,omitzero"`
	Age      duration     `json:"age,omitzero"`
	Version  string       `json:"version,omitempty"`
	Account  string       `json:"account,omitempty"`
	Hits     int          `json:"hits"`
}

func (s *Sim) showRules() []wireRule {
	rules := []wireRule{}
	for _, r := range s.WebhookRules() {
		shown := wireRule{ID: r.ID, Action: r.Fault, Type: r.Type, Customer: r.Customer, Times: r.Times, Delay: duration(r.Delay), Hits: r.Hits}
		switch r.Fault {
		case WebhookOldTimestamp:
			shown.Age = duration(r.Age)
		case WebhookAPIVersion:
			shown.Version = r.Version
		case WebhookForeignAccount:
			shown.Account = r.Account
		default: // the others have no use for these
		}
		rules = append(rules, shown)
	}
	return rules
}

// showWebhooks tells everything about webhooks but their secrets.
func (s *Sim) showWebhooks(r *http.Request) (any, error) {
	q, limit, err := queryOf(r, "event", "object", "type", "state", "after")
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
	url, secrets := s.webhook()
	return map[string]any{
		"url": url, "secrets": secrets, "idle": s.WebhooksIdle(), "rules": s.showRules(),
		"deliveries": s.Deliveries(DeliveryFilter{Event: q("event"), Object: q("object"), Type: q("type"), State: q("state"), After: after, Limit: limit}),
	}, nil
}

// webhook is the endpoint, and how many secrets it has.
func (s *Sim) webhook() (url string, secrets int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hooks.url, len(s.hooks.secrets)
}

func (s *Sim) changeEndpoint(r *http.Request) (any, error) {
	var body struct {
		URL    string `json:"url"`
		Secret string `json:"secret"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	if err := s.SetWebhook(body.URL, body.Secret); err != nil {
		return nil, err
	}
	url, secrets := s.webhook()
	return map[string]any{"url": url, "secrets": secrets}, nil
}

func (s *Sim) changeWebhooks(r *http.Request) (any, error) {
	var body struct {
		Action   string   `json:"action"`
		Event    string   `json:"event"`
		Since    *moment  `json:"since"`
		Type     string   `json:"type"`
		Customer string   `json:"customer"`
		Times    int      `json:"times"`
		Delay    duration `json:"delay"`
		Age      duration `json:"age"`
		Version  string   `json:"version"`
		Account  string   `json:"account"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	isRule := body.Times != 0 || body.Delay != 0 || body.Age != 0 || body.Version != "" || body.Account != ""
	picks := body.Event != "" || body.Since != nil
	switch body.Action {
	case "replay":
		if isRule {
			return nil, errors.New("replay takes event, since, type and customer only")
		}
		f := ReplayFilter{Event: body.Event, Type: body.Type, Customer: body.Customer}
		if body.Since != nil {
			f.Since = time.Time(*body.Since)
		}
		n, err := s.ReplayWebhooks(f)
		return map[string]int{"replayed": n}, err
	case "release":
		if isRule || picks || body.Type != "" || body.Customer != "" {
			return nil, errors.New("release takes nothing")
		}
		return map[string]int{"released": s.ReleaseWebhooks()}, nil
	}
	if picks {
		return nil, errors.New("event and since go with replay")
	}
	id, err := s.AddWebhookRule(WebhookRule{
		Fault: WebhookFault(body.Action), Type: body.Type, Customer: body.Customer, Times: body.Times,
		Delay: time.Duration(body.Delay), Age: time.Duration(body.Age), Version: body.Version, Account: body.Account,
	})
	if err != nil {
		return nil, err
	}
	s.log.Info("webhook fault armed", "id", id, "fault", body.Action)
	return map[string]any{"id": id, "rules": s.showRules()}, nil
}

func (s *Sim) changeDispute(r *http.Request) (any, error) {
	var body Dispute
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	if body.ID == "" {
		return s.OpenDispute(body)
	}
	if body != (Dispute{ID: body.ID, Status: body.Status}) {
		return nil, errors.New("a dispute that is there changes its status only")
	}
	return s.MoveDispute(body.ID, body.Status)
}

func (s *Sim) changeRefund(r *http.Request) (any, error) {
	var body struct {
		Refund        string            `json:"refund"`
		Status        string            `json:"status"`
		FailureReason string            `json:"failure_reason"`
		Charge        string            `json:"charge"`
		Amount        int64             `json:"amount"`
		Metadata      map[string]string `json:"metadata"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	return s.ChangeRefund(RefundChange(body))
}

func (s *Sim) changeCustomer(r *http.Request) (any, error) {
	var body wireCustomer
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	return body, s.SetCustomer(r.PathValue("id"), CustomerState(body))
}

func (s *Sim) showSnapshot(*http.Request) (any, error) {
	snapshot, err := s.Snapshot()
	if err != nil {
		return nil, err
	}
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Write(snapshot) //nolint:errcheck // the client may have gone
	}, nil
}

// maxSnapshot is the longest snapshot that is taken back.
const maxSnapshot = 4 << 30

func (s *Sim) restoreSnapshot(r *http.Request) (any, error) {
	keep := r.URL.Query().Get("clock")
	if keep != "" && keep != "keep" {
		return nil, fmt.Errorf("clock may be keep, not %q", keep)
	}
	snapshot, err := io.ReadAll(io.LimitReader(r.Body, maxSnapshot))
	if err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	return struct{}{}, s.Restore(snapshot, keep == "keep")
}
