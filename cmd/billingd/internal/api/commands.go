package api

import (
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

const commandPath = "/v1/commands/"

// registerCommands gives every command of the registry an address, and the
// others an answer.
func (s *Server) registerCommands() {
	for spec := range commands.All() {
		s.handle(s.commandOperation(spec), func(w http.ResponseWriter, r *http.Request) error {
			return s.serveCommand(w, r, spec)
		})
	}
	unknown := operation("", http.MethodPost, commandPath+"{name}", tagCommands, "", access.Dispatch)
	unknown.Hidden, unknown.RequestBody = true, &huma.RequestBody{}
	s.handle(unknown, func(_ http.ResponseWriter, r *http.Request) error {
		_, err := commands.Lookup(r.PathValue("name"))
		if err == nil {
			return notFound()
		}
		return err
	})
}

// commandOperation documents a command out of the registry.
func (s *Server) commandOperation(spec commands.Spec) huma.Operation {
	schemas := s.huma.OpenAPI().Components.Schemas
	body := schemas.Schema(reflect.TypeOf(spec.Body), true, spec.Name+"-body")
	if full := schemas.SchemaFromRef(body.Ref); full != nil {
		full.AdditionalProperties = false
	}
	receipt := func(description string) *huma.Response {
		return &huma.Response{Description: description, Content: map[string]*huma.MediaType{
			"application/json": {Schema: schemas.Schema(reflect.TypeFor[Receipt](), true, "Receipt")},
		}}
	}
	op := operation(spec.Name, http.MethodPost, commandPath+spec.Name, tagCommands, spec.Summary, access.Scope(spec.Scope))
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: body}}}
	op.Parameters = []*huma.Param{idempotencyKey(spec.NeedsKey)}
	op.Responses = map[string]*huma.Response{
		"200":     receipt("It is recorded; `replayed` if it had been before."),
		"default": s.problemResponse(),
	}
	if spec.Charges {
		op.Parameters = append(op.Parameters, waitParam("How long to wait for the bill to be decided, such as 10s; a minute at most."))
		op.Responses["200"] = receipt("It is recorded, and the attempt has ended: see `bill`.")
		op.Responses["202"] = receipt("It is recorded, and the attempt is under way or rests: see `bill`. The same command again tells how it stands then.")
	}
	return op
}

func idempotencyKey(required bool) *huma.Param {
	least, most := 1, 255
	doc := "Remembered with the caller, the command and the body: the same again gets the same receipt, anything else under it is refused with 409."
	if required {
		doc += " This command needs one, since several equal ones are legitimate: the key says which one this is."
	}
	return &huma.Param{Name: idempotencyHeader, In: "header", Required: required, Description: doc,
		Schema: &huma.Schema{Type: huma.TypeString, MinLength: &least, MaxLength: &most}}
}

func waitParam(doc string) *huma.Param {
	return &huma.Param{Name: "wait", In: "query", Description: doc, Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"10s"}}}
}

func (s *Server) problemResponse() *huma.Response {
	return &huma.Response{Description: "It did not work, and this is why.", Content: map[string]*huma.MediaType{
		problemType: {Schema: s.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")},
	}}
}

// serveCommand dispatches one command.
func (s *Server) serveCommand(w http.ResponseWriter, r *http.Request, spec commands.Spec) error {
	x := exchangeOf(r.Context())
	x.command = spec.Name
	wait, err := parseWait(r.URL.Query().Get("wait"), 0)
	if err != nil {
		return err
	}
	key, err := headerKey(r)
	if err != nil {
		return err
	}
	if err := checkContent(r, "application/json"); err != nil {
		return err
	}
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	now, err := s.clock(r.Context())
	if err != nil {
		return err
	}
	o, err := s.prepare(spec, key, body, now, x)
	if err != nil {
		return err
	}
	receipt, err := s.dispatch(r.Context(), o)
	x.note(o, receipt)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if receipt.Bill != nil {
		if wait > 0 && !receipt.Bill.rests() {
			if *receipt.Bill, err = s.awaitBill(r.Context(), o, wait); err != nil {
				return err
			}
		}
		if !receipt.Bill.decided() {
			status = http.StatusAccepted
		}
	}
	writeJSON(w, status, "application/json", receipt)
	return nil
}

const idempotencyHeader = "Idempotency-Key"

// headerKey is the Idempotency-Key of a request; empty if there is none.
func headerKey(r *http.Request) (domain.Key, error) {
	switch given := r.Header.Values(idempotencyHeader); len(given) {
	case 0:
		return "", nil
	case 1:
		return domain.ParseKey(given[0])
	default:
		return "", domain.InvalidField(idempotencyHeader, "occurs more than once, %s times", strconv.Itoa(len(given)))
	}
}

// longestWait bounds every ?wait=.
const longestWait = time.Minute

// parseWait reads how long a caller wants to wait.
func parseWait(s string, otherwise time.Duration) (time.Duration, error) {
	if s == "" {
		return otherwise, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > longestWait {
		return 0, domain.InvalidField("wait", "must be a duration from 0s to %s, such as 10s", longestWait)
	}
	return d, nil
}
