package api

import (
	"context"
	"encoding/base64"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/sagas"
)

// reconcileBody asks for a reconciliation.
type reconcileBody struct {
	Period string `json:"period,omitempty" doc:"One billing period: its bills, and charges since the month before it." example:"2026-11"`
	Since  string `json:"since,omitempty" doc:"Bills recorded and charges created since then: a day, or a time in RFC 3339." example:"2026-11-01"`
}

func (b reconcileBody) scope() (s sagas.Scope, err error) {
	if b.Period != "" && b.Since != "" {
		return s, domain.InvalidField("since", "cannot be given together with period")
	}
	if b.Period != "" {
		if s.Period, err = domain.ParsePeriod(b.Period); err != nil {
			return s, domain.InvalidField("period", "must be a billing period such as 2026-11, 2026-Q3 or 2026")
		}
	}
	if b.Since != "" {
		for _, layout := range []string{time.DateOnly, time.RFC3339} {
			if s.Since, err = time.Parse(layout, b.Since); err == nil {
				s.Since = s.Since.UTC().Truncate(time.Second)
				return s, nil
			}
		}
		return s, domain.InvalidField("since", "must be a day such as 2026-11-01 or a time such as 2026-11-01T00:00:00Z")
	}
	return s, nil
}

// reconciliationPage is how one stands, with a page of its findings.
type reconciliationPage struct {
	sagas.Reconciliation
	Findings   []finding `json:"findings"`
	NextCursor string    `json:"next_cursor,omitempty"`
}

// finding is one difference between the books.
type finding struct {
	Kind          sagas.DifferenceKind `json:"kind" enum:"missing,orphan,unrecorded,mismatch,duplicate,row"`
	Subject       string               `json:"subject" doc:"The charge; of a row, its bill."`
	CustomerID    string               `json:"customer_id,omitempty"`
	BillingPeriod string               `json:"billing_period,omitempty"`
	ChargeID      string               `json:"charge_id,omitempty"`
	IntentID      string               `json:"intent_id,omitempty"`
	Amount        *projections.Money   `json:"amount,omitempty" doc:"At Stripe, if it has the charge."`
	Detail        string               `json:"detail"`
	Repaired      bool                 `json:"repaired"`
	Action        string               `json:"action" doc:"What was done, or what is proposed."`
	FoundAt       time.Time            `json:"found_at"`
}

func findingOf(d sagas.Difference) finding {
	f := finding{d.Kind, d.Subject, d.CustomerID, d.BillingPeriod, d.ChargeID, d.IntentID, nil, d.Detail, d.Repaired, d.Action, d.FoundAt}
	if d.Amount.Currency != "" {
		f.Amount = &projections.Money{Minor: d.Amount.Minor, Currency: d.Amount.Currency, Display: d.Amount.String()}
	}
	return f
}

// registerReconciliations serves the comparison of the three books.
func (s *Server) registerReconciliations(r *sagas.Reconciler) {
	if r == nil {
		return
	}
	const path = "/v1/reconciliations"
	schemas := s.huma.OpenAPI().Components.Schemas
	body := schemas.Schema(reflect.TypeFor[reconcileBody](), true, "reconcile-body")
	if full := schemas.SchemaFromRef(body.Ref); full != nil {
		full.AdditionalProperties = false
	}
	start := operation("start-reconciliation", http.MethodPost, path, tagService, "Compare the log, the pre-flight rows and Stripe", access.Operate)
	start.Description = "It is carried out by one instance, one after the other. Who asks for what is asked for already gets that one. Neither period nor since: everything."
	start.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: body}}}
	start.Responses = map[string]*huma.Response{
		"202": {Description: "It is asked for; see how it stands by its id.", Content: map[string]*huma.MediaType{
			"application/json": {Schema: s.schemaOf(sagas.Reconciliation{}, "Reconciliation")},
		}},
		"default": s.problemResponse(),
	}
	s.handle(start, func(w http.ResponseWriter, req *http.Request) error {
		if err := checkContent(req, "application/json"); err != nil {
			return err
		}
		raw, err := s.readBody(w, req)
		if err != nil {
			return err
		}
		var b reconcileBody
		if err := commands.DecodeBody(raw, &b); err != nil {
			return err
		}
		scope, err := b.scope()
		if err != nil {
			return err
		}
		id, err := r.Start(req.Context(), scope, exchangeOf(req.Context()).caller.Name)
		if err != nil {
			return err
		}
		v, err := r.Get(req.Context(), id)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusAccepted, "application/json", v)
		return nil
	})

	type query struct {
		ID     int64  `path:"id" minimum:"1" example:"12"`
		Cursor string `query:"cursor" doc:"next_cursor of the page of findings before."`
		Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"Findings of a page at most."`
	}
	get := operation("get-reconciliation", http.MethodGet, path+"/{id}", tagService, "See how a reconciliation stands, and what it has found", access.Read)
	get.Description = "Findings are ordered by kind, then by subject."
	read(s, get, func(ctx context.Context, q *query) (v reconciliationPage, err error) {
		kind, subject, err := parseFindingCursor(q.Cursor)
		if err != nil {
			return v, err
		}
		if v.Reconciliation, err = r.Get(ctx, q.ID); err != nil {
			return v, err
		}
		all, err := r.Findings(ctx, q.ID, kind, subject, q.Limit+1)
		if err != nil {
			return v, err
		}
		v.Findings = []finding{}
		for i, d := range all {
			if i == q.Limit {
				last := all[i-1]
				v.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(string(last.Kind) + "\n" + last.Subject))
				break
			}
			v.Findings = append(v.Findings, findingOf(d))
		}
		return v, nil
	})
}

func parseFindingCursor(s string) (kind, subject string, err error) {
	if s == "" {
		return "", "", nil
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(s)
	kind, subject, ok := strings.Cut(string(text), "\n")
	if err != nil || !ok || strconv.Quote(subject) != `"`+subject+`"` {
		return "", "", domain.InvalidField("cursor", "is not a cursor of this list; begin again without one")
	}
	return kind, subject, nil
}

// schemaOf is the schema of what v is an example of.
func (s *Server) schemaOf(v any, name string) *huma.Schema {
	return s.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(v), true, name)
}
