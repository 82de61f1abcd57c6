package api

import (
	"context"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
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

	schemas := s.huma.OpenAPI().Components.Schemas
	body := schemas.Schema(reflect.TypeFor[adoption](), true, "adoption")
	if full := schemas.SchemaFromRef(body.Ref); full != nil {
		full.AdditionalProperties = false
	}
	op := operation("adopt-environment", http.MethodPost, path+"/adopt", tagService, "Let bills be collected on this database from now on", access.Operate)
	op.Description = "After a restore, once the look at what Stripe holds is complete; or on a copy that is to live elsewhere. Refused with 409 if there is nothing to adopt, or if the look is not complete."
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: body}}}
	op.Responses = map[string]*huma.Response{
		"200": {Description: "It is adopted.", Content: map[string]*huma.MediaType{
			"application/json": {Schema: schemas.Schema(reflect.TypeFor[sagas.Standing](), true, "Standing")},
		}},
		"default": s.problemResponse(),
	}
	s.handle(op, func(w http.ResponseWriter, r *http.Request) error {
		if err := checkContent(r, "application/json"); err != nil {
			return err
		}
		raw, err := s.readBody(w, r)
		if err != nil {
			return err
		}
		var a adoption
		if err := commands.DecodeBody(raw, &a); err != nil {
			return err
		}
		if a.Reason = strings.TrimSpace(a.Reason); a.Reason == "" || len(a.Reason) > 500 {
			return domain.InvalidField("reason", "must have 1 to 500 characters")
		}
		standing, err := e.Adopt(r.Context(), exchangeOf(r.Context()).caller.Name, a.Reason)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, "application/json", standing)
		return nil
	})
}
