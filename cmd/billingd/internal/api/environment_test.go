package api

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/billonce/billonce/sagas"
)

// An adoption takes a reason and an operator, and says who it was.
func TestAdopt(t *testing.T) {
	t.Parallel()
	standing := sagas.Standing{Reason: "the log has gone back", Name: "production"}
	var by, reason string
	i := start(t, tokensOf(t, "reader:read:"+hashOf("r")+",admin:operate:"+hashOf("a")), func(d *Deps, _ *Limits) {
		d.Environment = Environment{
			Standing: func() sagas.Standing { return standing },
			Adopt: func(_ context.Context, who, why string) (sagas.Standing, error) {
				by, reason = who, why
				if why == "too early" {
					return standing, sagas.ErrNotLookedAt
				}
				standing = sagas.Standing{Fits: true, Name: "production", AdoptedBy: who, AdoptedReason: why}
				return standing, nil
			},
		}
	})
	adopt := func(body, token string) answer {
		r := i.request(http.MethodPost, "/v1/environment/adopt", body, "Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		return i.do(r)
	}
	if a := i.get("/v1/environment", "Authorization", "Bearer r"); a.status != http.StatusOK || !strings.Contains(string(a.body), "the log has gone back") {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, body := range []string{``, `{}`, `{"reason":""}`, `{"reason":"  "}`, `{"reason":null}`, `{"reason":"x","reason":"y"}`, `{"reason":"x","more":1}`, `{"reason":"a\u0000b"}`, `{"reason":"\u001b[31m"}`, `{"reason":"` + strings.Repeat("x", 501) + `"}`, `[]`} {
		if a := adopt(body, "a"); a.status != http.StatusBadRequest || reason != "" {
			t.Errorf("%.40s: %d, adopted for %q", body, a.status, reason)
		}
	}
	if a := adopt(`{"reason":"restored"}`, "r"); a.status != http.StatusForbidden || reason != "" {
		t.Errorf("without the scope: %d", a.status)
	}
	if a := adopt(`{"reason":"too early"}`, "a"); a.status != http.StatusConflict || a.problem(t).Code != "look_not_complete" {
		t.Errorf("too early: %d", a.status)
	}
	if a := adopt(`{"reason":" restored "}`, "a"); a.status != http.StatusOK || by != "admin" || reason != "restored" || !strings.Contains(string(a.body), `"fits":true`) {
		t.Errorf("%d %s by %q for %q", a.status, a.body, by, reason)
	}
}
