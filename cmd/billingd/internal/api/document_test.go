package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/sagas"
)

// Everything that is served is documented, and everything that is documented
// is served.
func TestDocumentMatchesRoutes(t *testing.T) {
	t.Parallel()
	i := start(t, func(d *Deps, _ *Limits) { d.Environment.Standing = func() sagas.Standing { return sagas.Standing{} } })
	var document struct {
		OpenAPI string `json:"openapi"`
		Paths   map[string]map[string]struct {
			OperationID string                      `json:"operationId"`
			Security    []map[string][]string       `json:"security"`
			Parameters  []struct{ Name, In string } `json:"parameters"`
			RequestBody struct {
				Content map[string]struct {
					Schema struct {
						Ref string `json:"$ref"`
					} `json:"schema"`
				} `json:"content"`
			} `json:"requestBody"`
			Responses map[string]any `json:"responses"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]struct {
				Properties           map[string]any `json:"properties"`
				Required             []string       `json:"required"`
				AdditionalProperties *bool          `json:"additionalProperties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	a := i.get("/openapi.json")
	a.json(t, &document)
	if !strings.HasPrefix(document.OpenAPI, "3.1") || a.header.Get("Content-Type") != "application/openapi+json" {
		t.Errorf("it is OpenAPI %s as %s", document.OpenAPI, a.header.Get("Content-Type"))
	}
	documented := map[string]bool{}
	for path, item := range document.Paths {
		for method, op := range item {
			pattern := strings.ToUpper(method) + " " + path
			documented[pattern] = true
			if !slices.Contains(i.mux.patterns, pattern) {
				t.Errorf("%s is documented and not served", pattern)
			}
			if op.OperationID == "" || op.Responses["default"] == nil {
				t.Errorf("%s has the id %q and the default response %v", pattern, op.OperationID, op.Responses["default"])
			}
			for _, part := range strings.Split(path, "/") {
				if name, ok := strings.CutPrefix(part, "{"); ok && !slices.Contains(op.Parameters, struct{ Name, In string }{strings.TrimSuffix(name, "}"), "path"}) {
					t.Errorf("%s does not document %s: no valid OpenAPI", pattern, part)
				}
			}
			public := len(op.Security) == 0
			if wantPublic := !strings.HasPrefix(path, "/v1/"); public != wantPublic {
				t.Errorf("%s needs %v", pattern, op.Security)
			}
		}
	}
	undocumented := []string{"POST /v1/commands/{name}", "GET /{$}", "GET /openapi.json"}
	for _, pattern := range i.mux.patterns {
		if !documented[pattern] && !slices.Contains(undocumented, pattern) {
			t.Errorf("%s is served and not documented", pattern)
		}
	}
	for spec := range commands.All() {
		op := document.Paths["/v1/commands/"+spec.Name]["post"]
		ref := strings.TrimPrefix(op.RequestBody.Content["application/json"].Schema.Ref, "#/components/schemas/")
		schema := document.Components.Schemas[ref]
		subject := "customer_id"
		if strings.HasSuffix(spec.Name, "-run") {
			subject = "billing_period"
		}
		if !slices.Contains(schema.Required, subject) || schema.AdditionalProperties == nil || *schema.AdditionalProperties {
			t.Errorf("the body of %s is %s: %+v", spec.Name, ref, schema)
		}
		if len(op.Security) != 1 || !slices.Equal(op.Security[0][bearer], []string{string(spec.Scope)}) {
			t.Errorf("%s needs %v, want the scope %s", spec.Name, op.Security, spec.Scope)
		}
	}
	for _, name := range []string{"Problem", "Receipt"} {
		if len(document.Components.Schemas[name].Properties) < 5 {
			t.Errorf("the schema %s is %+v", name, document.Components.Schemas[name])
		}
	}
}
