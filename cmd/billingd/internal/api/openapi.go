package api

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/billonce/billonce/domain"
)

// huma is set up by package variables: by these two functions it makes its
// errors. A process has one API, this one.
func init() {
	huma.DefaultArrayNullable = false // our lists are empty where there is nothing
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return humaProblem(status, msg, errs)
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		p := humaProblem(status, msg, errs)
		if ctx == nil {
			return p
		}
		return exchangeOf(ctx.Context()).failed(p)
	}
}

// humaProblem is a Problem for what huma itself finds wrong.
func humaProblem(status int, msg string, errs []error) *Problem {
	if status >= http.StatusInternalServerError {
		return internalProblem()
	}
	if status == http.StatusUnprocessableEntity { // a parameter that cannot be read
		status = http.StatusBadRequest
	}
	p := problem(status, domain.ErrInvalidInput.Code, "%s", domain.ErrInvalidInput.Msg)
	if len(errs) == 0 && msg != "" {
		p.Detail = msg
	}
	for _, err := range errs {
		f := domain.FieldError{Field: "request", Msg: err.Error()}
		if d, ok := err.(huma.ErrorDetailer); ok {
			detail := d.ErrorDetail()
			f = domain.FieldError{Field: detail.Location, Msg: detail.Message}
			if _, name, ok := strings.Cut(detail.Location, "."); ok { // query.limit
				f.Field = name
			}
		}
		p.Errors = append(p.Errors, f)
	}
	return p
}

// newHuma makes the part of the API that documents itself.
func newHuma(mux *router, version string) huma.API {
	config := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title:   "Billonce",
				Version: version,
				Description: "Bills every customer exactly once per billing period.\n\n" +
					"Commands may be repeated at will: each has a key of its own, made from what it says, and the same command answers with the same receipt. " +
					"Every error has the shape of the Problem schema; go by its code.",
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{bearer: {
					Type: "http", Scheme: "bearer",
					Description: "A token with the scope that the operation names: read, dispatch or operate. Without any token set, the service listens on loopback, reading and dispatching are open and operating is off.",
				}},
			},
			Tags: []*huma.Tag{
				{Name: tagCommands, Description: "Say what is to happen."},
				{Name: tagReads, Description: "See what has happened. Every answer says as of which place in the log it is."},
				{Name: tagDelivery, Description: "How far the parts of the service have come."},
				{Name: tagService, Description: "The service itself."},
			},
		},
		Formats:       map[string]huma.Format{"application/json": huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat},
		DefaultFormat: "application/json",
	}
	config.AllowAdditionalPropertiesByDefault = true // an answer may have more to say one day
	return humago.New(mux, config)
}

const (
	tagCommands = "commands"
	tagReads    = "reads"
	tagDelivery = "delivery"
	tagService  = "service"
)

// document is the OpenAPI document, ready to be served.
func (s *Server) document() ([]byte, error) {
	return json.MarshalIndent(s.huma.OpenAPI(), "", "  ")
}
