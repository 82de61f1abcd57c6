package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/danielgtaylor/huma/v2"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/sagas"
)

// closeBody closes a run.
type closeBody struct {
	ReconciliationID int64 `json:"reconciliation_id,omitempty" doc:"The comparison of this period to rely on; left out: the newest." example:"12"`
}

// closed is the answer to a closing.
type closed struct {
	Closing projections.RunClosing `json:"closing"`
	Report  domain.RunReport       `json:"report"`
}

// registerClosing serves the end of a run and the report of it.
func (s *Server) registerClosing(r *sagas.Reconciler) {
	const path = "/v1/runs/{period}"
	report := operation("report-run", http.MethodGet, path+"/report", tagReads, "See what became of a run", access.Read)
	report.Description = "Of the moment of its last closing; of now, if it was never closed. It is made out of the log, and is the same to the byte each time: its SHA-256 is what the closing names."
	report.Responses = s.answers("200", "What became of it.", domain.RunReport{}, "RunReport")
	s.handle(report, func(w http.ResponseWriter, req *http.Request) error {
		v, _, err := s.reads.RunReport(req.Context(), req.PathValue("period"), nil)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, "application/json", v)
		return nil
	})

	list := operation("list-run-bills", http.MethodGet, path+"/report.csv", tagReads, "List the bills of a run's report", access.Read)
	list.Description = "A line a bill, ordered by customer. Its SHA-256 is the report's bills_sha256."
	list.Responses = map[string]*huma.Response{"200": {Description: "The bills.", Content: map[string]*huma.MediaType{"text/csv": {Schema: &huma.Schema{Type: huma.TypeString}}}}, "default": s.problemResponse()}
	s.handle(list, func(w http.ResponseWriter, req *http.Request) error {
		// Into a file first: nobody who reads slowly shall hold a snapshot open, and
		// half a list must not look like a whole one.
		file, err := os.CreateTemp("", "billonce-bills-")
		if err != nil {
			return fmt.Errorf("keep the list of bills: %w", err)
		}
		defer os.Remove(file.Name())
		defer file.Close()
		if _, _, err := s.reads.RunReport(req.Context(), req.PathValue("period"), file); err != nil {
			return err
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("keep the list of bills: %w", err)
		}
		w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		if _, err := io.Copy(w, file); err != nil {
			panic(http.ErrAbortHandler) // it has begun
		}
		return nil
	})
	if r == nil {
		return
	}

	end := operation("close-run", http.MethodPost, path+"/close", tagService, "Close a run", access.Operate)
	end.Description = "A run is over when all of its bills have ended, nothing more falls due under its label, and the log has what Stripe took for it, to the minor unit. It is compared with Stripe first: start a reconciliation of the period. " +
		"Refused with 422 and every reason otherwise. A run whose bills stand as they did when it was closed stays closed; one that has changed since, by a refund for example, is closed once more."
	s.takes(&end, closeBody{}, "close-body")
	end.Responses = s.answers("200", "It is closed.", closed{}, "Closed")
	s.handle(end, func(w http.ResponseWriter, req *http.Request) error {
		var b closeBody
		if err := s.decode(w, req, &b); err != nil {
			return err
		}
		v, err := s.closeRun(req.Context(), r, req.PathValue("period"), b.ReconciliationID)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, "application/json", v)
		return nil
	})
}

// closeRun gathers what is known of a run, and has that decided.
func (s *Server) closeRun(ctx context.Context, r *sagas.Reconciler, label string, id int64) (v closed, err error) {
	period, err := domain.ParsePeriod(label)
	if err != nil {
		return v, domain.InvalidField("period", "must be a billing period such as 2026-11, 2026-Q3 or 2026")
	}
	scope := sagas.Scope{Period: period}
	if id == 0 {
		if id, err = r.Latest(ctx, scope); err != nil {
			return v, err
		}
	}
	compared, err := r.Get(ctx, id)
	if err != nil {
		return v, err
	}
	since := compared.CreatedAt
	if compared.StartedAt != nil {
		since = *compared.StartedAt
	}
	standing, err := s.reads.RunStanding(ctx, period, since)
	if err != nil {
		return v, err
	}
	evidence := commands.ClosingEvidence{
		ReconciliationID: compared.ID, Compared: compared.Done() && compared.Scope == scope.String(), Differences: compared.Unrepaired, AtStripe: compared.Taken,
		Since: standing.Since, FallingDue: standing.FallingDue, Parked: standing.Parked,
	}
	now, err := s.clock(ctx)
	if err != nil {
		return v, err
	}
	x := exchangeOf(ctx)
	meta := eventstore.Meta{Actor: x.caller.Name, Correlation: x.id}
	if _, err := s.dispatcher.Dispatch(ctx, commands.Of(commands.NewCloseRun(standing.Report, evidence, now)), commands.Context{Meta: meta}); err != nil {
		return v, err
	}
	report, closing, err := s.reads.RunReport(ctx, period.String(), nil)
	if err != nil {
		return v, err
	}
	return closed{*closing, report}, nil
}
