package api

import (
	"errors"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/billonce/billonce/cmd/internal/content"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// checkContent refuses a body that is not what the address takes.
func checkContent(r *http.Request, mediaType string) error {
	if why, ok := content.Check(r.Header, mediaType); !ok {
		return refusedBody(http.StatusUnsupportedMediaType, why.Code, why.Message)
	}
	return nil
}

// refusedBody is a problem after which the rest of the body is not read.
func refusedBody(status int, code, detail string) *Problem {
	p := problem(status, code, "%s", detail)
	p.close = true
	return p
}

// readBody reads a whole body, counting what really arrives, within the time
// that ServeHTTP has set.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > s.limits.Body {
		return nil, s.tooLarge()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.limits.Body))
	if err != nil {
		return nil, s.bodyProblem(err)
	}
	// The deadline must not outlive the body: it would cut the wait for an
	// outcome short.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // not every writer has one
	return body, nil
}

func (s *Server) bodyProblem(err error) *Problem {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return s.tooLarge()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return refusedBody(http.StatusRequestTimeout, "body_timeout", "the body did not arrive in time")
	}
	return refusedBody(http.StatusBadRequest, "body_broken", "the body ended before it was complete")
}

func (s *Server) tooLarge() *Problem {
	p := problem(http.StatusRequestEntityTooLarge, "body_too_large", "the body must not exceed %d bytes", s.limits.Body)
	p.close = true
	return p
}

// takes documents that an operation takes a JSON object like v.
func (s *Server) takes(op *huma.Operation, v any, name string) {
	schema := s.schemaOf(v, name)
	if full := s.huma.OpenAPI().Components.Schemas.SchemaFromRef(schema.Ref); full != nil {
		full.AdditionalProperties = false
	}
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}
}

// answers documents that an operation answers by something like v, or by a
// problem.
func (s *Server) answers(status, description string, v any, name string) map[string]*huma.Response {
	return map[string]*huma.Response{
		status:    {Description: description, Content: map[string]*huma.MediaType{"application/json": {Schema: s.schemaOf(v, name)}}},
		"default": s.problemResponse(),
	}
}

// schemaOf is the schema of what v is an example of.
func (s *Server) schemaOf(v any, name string) *huma.Schema {
	return s.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(v), true, name)
}

// decode reads a JSON body, as strictly as that of a command.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, body any) error {
	if err := checkContent(r, "application/json"); err != nil {
		return err
	}
	raw, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	return commands.DecodeBody(raw, body)
}

// checkText refuses text that is not fit for the record, or for the screen of
// whoever reads it.
func checkText(field, text string) error {
	if strings.TrimSpace(text) == "" || utf8.RuneCountInString(text) > 500 || strings.ContainsFunc(text, unicode.IsControl) {
		return domain.InvalidField(field, "must have 1 to 500 characters, and no control characters")
	}
	return nil
}
