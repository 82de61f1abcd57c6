package api

import (
	"net/http"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// started is the answer to a run that is started by hand.
type started struct {
	BillingPeriod domain.Period `json:"billing_period"`
	New           int           `json:"new" doc:"Dues of the period that this call has declared."`
}

// registerStarting serves the manual start of a run, beside the scanners.
func (s *Server) registerStarting(scanner *sagas.DueScanner) {
	if scanner == nil {
		return
	}
	start := operation("start-run", http.MethodPost, "/v1/runs/{period}/start", tagService, "Declare at once what is due", access.Dispatch)
	start.Description = "Runs start by themselves; this looks at once instead of at the next look. It may be sent at any time and as often as anybody likes: nothing is declared twice, nothing before it is due, and of a customer the oldest period comes first."
	start.Responses = s.answers("200", "It is declared.", started{}, "Started")
	s.handle(start, func(w http.ResponseWriter, req *http.Request) error {
		p, err := domain.ParsePeriod(req.PathValue("period"))
		if err != nil {
			return domain.InvalidField("period", "must be a billing period such as 2026-11, 2026-Q3 or 2026")
		}
		n, err := scanner.Start(req.Context(), p)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, "application/json", started{p, n})
		return nil
	})
}
