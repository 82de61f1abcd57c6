package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/sagas"
)

// Environment is how the service and its database stand to each other.
type Environment struct {
	Standing func() sagas.Standing
	// Adopt confirms the database as it is now, in an operator's name.
	Adopt func(ctx context.Context, by, reason string) (sagas.Standing, error)
}

// adoption is the body of an adoption.
type adoption struct {
	Reason string `json:"reason" doc:"Why this database is to be collected on, for whoever reads the record later." maxLength:"500" example:"restored from Tuesday's backup; the wire settlements since were entered again"`
}

// registerEnvironment serves the database's identity, and its adoption.
func (s *Server) registerEnvironment(e Environment) {
	if e.Standing == nil {
		return
	}
	const path = "/v1/environment"
	show := operation("show-environment", http.MethodGet, path, tagService, "See whether the database is the one that the service takes it for", access.Read)
	read(s, show, func(context.Context, *struct{}) (sagas.Standing, error) { return e.Standing(), nil })

	op := operation("adopt-environment", http.MethodPost, path+"/adopt", tagService, "Let bills be collected on this database from now on", access.Operate)
	op.Description = "After a restore, once the look at what Stripe holds is complete; or on a copy that is to live elsewhere. Refused with 409 if there is nothing to adopt, or if the look is not complete."
	s.takes(&op, adoption{}, "adoption")
	op.Responses = s.answers("200", "It is adopted.", sagas.Standing{}, "Standing")
	s.handle(op, func(w http.ResponseWriter, r *http.Request) error {
		var a adoption
		if err := s.decode(w, r, &a); err != nil {
			return err
		}
		a.Reason = strings.TrimSpace(a.Reason)
		if err := checkText("reason", a.Reason); err != nil {
			return err
		}
		standing, err := e.Adopt(r.Context(), exchangeOf(r.Context()).caller.Name, a.Reason)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, "application/json", standing)
		return nil
	})
}
