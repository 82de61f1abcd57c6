package api

import (
	"context"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
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

// dismissBody leaves a finding as it is.
type dismissBody struct {
	Kind    string `json:"kind" doc:"The finding's kind." example:"orphan"`
	Subject string `json:"subject" doc:"What it is about." maxLength:"500" example:"ch_3NvXyz"`
	Reason  string `json:"reason" doc:"Why it stays as it is, for whoever reads the record later; no personal data." maxLength:"500" example:"the shop's own sale, booked there"`
}

func (b dismissBody) check() error {
	for field, text := range map[string]string{"kind": b.Kind, "subject": b.Subject, "reason": b.Reason} {
		if err := checkText(field, text); err != nil {
			return err
		}
	}
	return nil
}

// reconciliationPage is how one stands, with a page of its findings.
type reconciliationPage struct {
	sagas.Reconciliation
	Findings   []finding `json:"findings"`
	NextCursor string    `json:"next_cursor,omitempty"`
}

// finding is one difference between the books.
type finding struct {
	Kind          sagas.DifferenceKind `json:"kind" enum:"missing,orphan,unrecorded,mismatch,duplicate,possible_duplicate,row,refund"`
	Subject       string               `json:"subject" doc:"The charge; of a row, its bill; of a refund, its id at Stripe."`
	CustomerID    string               `json:"customer_id,omitempty"`
	BillingPeriod string               `json:"billing_period,omitempty"`
	ChargeID      string               `json:"charge_id,omitempty"`
	IntentID      string               `json:"intent_id,omitempty"`
	Amount        *projections.Money   `json:"amount,omitempty" doc:"At Stripe, if it has the charge."`
	Detail        string               `json:"detail"`
	Repaired      bool                 `json:"repaired"`
	Action        string               `json:"action" doc:"What was done, or what is proposed."`
	FoundAt       time.Time            `json:"found_at"`
	Dismissed     *sagas.Dismissal     `json:"dismissed,omitempty" doc:"Who leaves it as it is, and why; it is not counted then."`
}

func findingOf(d sagas.Difference) finding {
	f := finding{d.Kind, d.Subject, d.CustomerID, d.BillingPeriod, d.ChargeID, d.IntentID, nil, d.Detail, d.Repaired, d.Action, d.FoundAt, d.Dismissed}
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
	start := operation("start-reconciliation", http.MethodPost, path, tagService, "Compare the log, the pre-flight rows and Stripe", access.Operate)
	start.Description = "It is carried out by one instance, one after the other. Who asks for what is asked for already gets that one. Neither period nor since: everything."
	s.takes(&start, reconcileBody{}, "reconcile-body")
	start.Responses = s.answers("202", "It is asked for; see how it stands by its id.", sagas.Reconciliation{}, "Reconciliation")
	s.handle(start, func(w http.ResponseWriter, req *http.Request) error {
		var b reconcileBody
		if err := s.decode(w, req, &b); err != nil {
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

	dismiss := operation("dismiss-finding", http.MethodPost, path+"/dismissals", tagService, "Leave a finding as it is", access.Operate)
	dismiss.Description = "For what has been looked into and stays as it is at Stripe: missing, orphan, mismatch and possible_duplicate. " +
		"The same object is shown as dismissed from then on, in reconciliations before and after, and counted apart. A duplicate is decided by its refund proposal, a refund by accept-refund."
	s.takes(&dismiss, dismissBody{}, "dismiss-body")
	dismiss.Responses = s.answers("200", "It is dismissed; also if it had been, for the same reason.", sagas.Dismissal{}, "Dismissal")
	s.handle(dismiss, func(w http.ResponseWriter, req *http.Request) error {
		var b dismissBody
		if err := s.decode(w, req, &b); err != nil {
			return err
		}
		if err := b.check(); err != nil {
			return err
		}
		d, err := r.Dismiss(req.Context(), sagas.DifferenceKind(b.Kind), b.Subject, b.Reason, exchangeOf(req.Context()).caller.Name)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, "application/json", d)
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
