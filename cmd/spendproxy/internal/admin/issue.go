package admin

import (
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strconv"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// rules are those that a key can be given.
var rules = []policy.Rule{
	policy.IntentsCreate, policy.IntentsConfirm, policy.IntentsCancel, policy.IntentsRead, policy.ChargesCreate, policy.ChargesRead,
	policy.CustomersRead, policy.MethodsRead, policy.AccountRead, policy.RefundsCreate, policy.RefundsRead, policy.EventsRead,
}

var (
	environmentShape = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	runShape         = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
)

const labelMost = 128

// issue makes a key, or gives a run's key one more secret.
func (s *server) issue(c call) (answer, error) {
	o, err := readObject(c.w, c.r)
	if err != nil {
		return answer{}, err
	}
	terms := serviceTerms
	if c.who.admin {
		terms = adminTerms
	}
	i, err := terms(o)
	if err != nil {
		return answer{}, err
	}
	i.By = c.who.name
	key, secret, existed, err := s.ledger.Issue(c.r.Context(), i)
	if err != nil {
		return answer{}, fmt.Errorf("issue a vault key: %w", err)
	}
	if !c.who.admin && !isRun(key) {
		// The new secret is given to nobody.
		return answer{}, &problem{status: http.StatusConflict, code: "not_a_run_key", message: "the run's key was issued with terms that are not a run's; an operator must revoke it"}
	}
	s.note(c, "a secret was issued", key.ID, slog.String("label", key.Label), slog.String("run", key.Run), slog.Bool("existed", existed))
	status := http.StatusCreated
	if existed {
		status = http.StatusOK
	}
	return answer{status, struct {
		VaultKey keyView `json:"vault_key"`
		Secret   string  `json:"secret"`
	}{viewKey(key, nil), secret}}, nil
}

// isRun reports whether a key is what the service may hold.
func isRun(k ledger.VaultKey) bool {
	return k.Run != "" && k.Grant.Manifest && k.Grant.Mode == policy.Enforce
}

// serviceTerms are those of a run: the service names the run, the rest is
// fixed.
func serviceTerms(o *object) (ledger.Issue, error) {
	for _, name := range []string{"rules", "mode", "window", "manifest", "caps", "count_cap"} {
		if o.has(name) {
			return ledger.Issue{}, refused("not_permitted", "the service token issues keys of runs alone, whose "+name+" is fixed")
		}
	}
	i := ledger.Issue{
		Label: o.text("label", false, labelMost), Environment: o.shaped("environment", environmentShape, true), Run: o.shaped("run", runShape, true),
		Grant: policy.Grant{Rules: policy.RunRules, Mode: policy.Enforce, Window: policy.Total, Manifest: true, Expires: o.moment("expires_at", true)},
	}
	if i.Label == "" {
		i.Label = "run " + i.Run
	}
	return i, o.done()
}

// adminTerms are whatever the operator asks for.
func adminTerms(o *object) (ledger.Issue, error) {
	i := ledger.Issue{Environment: o.shaped("environment", environmentShape, false), Run: o.shaped("run", runShape, false)}
	i.Label = o.text("label", i.Run == "", labelMost)
	if i.Label == "" {
		i.Label = "run " + i.Run
	}
	if i.Run != "" && i.Environment == "" {
		o.fault("environment", "is required with a run")
	}
	i.Grant = policy.Grant{
		Rules: o.rules(i.Run != ""), Mode: choice(o, "mode", policy.Enforce, policy.Open, policy.Report, policy.Enforce),
		Window: choice(o, "window", policy.Total, policy.Total, policy.Day), Expires: o.moment("expires_at", false),
	}
	o.take("manifest", "true or false", &i.Grant.Manifest)
	i.CountCap = o.count("count_cap")
	i.Caps = o.caps()
	if i.Grant.Manifest && i.Grant.Mode != policy.Enforce {
		o.fault("mode", "must be enforce for a key with a manifest")
	}
	return i, o.done()
}

// shaped is a field of a certain shape; empty if it is left out.
func (o *object) shaped(name string, shape *regexp.Regexp, required bool) string {
	var s string
	read := o.take
	if required {
		read = o.need
	}
	if read(name, "a string", &s) && !shape.MatchString(s) {
		o.fault(name, "must match %s", shape)
	}
	return s
}

// choice is a field that takes one of a few words.
func choice[T ~string](o *object, name string, otherwise T, words ...T) T {
	given := otherwise
	if o.take(name, "a string", &given) && !slices.Contains(words, given) {
		o.fault(name, "must be one of %v", words)
	}
	return given
}

func (o *object) rules(ofRun bool) []policy.Rule {
	if ofRun && !o.has("rules") {
		return policy.RunRules
	}
	var given []policy.Rule
	if !o.need("rules", "a list of strings", &given) {
		return nil
	}
	if len(given) == 0 {
		o.fault("rules", "must name one rule at least")
	}
	for i, r := range given {
		switch {
		case !slices.Contains(rules, r):
			o.fault("rules", "holds %.40q; the rules are %v", r, rules)
		case slices.Contains(given[:i], r):
			o.fault("rules", "names %s more than once", r)
		}
	}
	return given
}

func (o *object) count(name string) int64 {
	var n int64
	if o.take(name, "a whole number", &n) && n < 0 {
		o.fault(name, "must not be negative")
	}
	return n
}

// caps are the caps per currency; none: no money can be moved, unless by a
// manifest.
func (o *object) caps() (caps []ledger.CapTerms) {
	var raw []rawObject
	o.take("caps", "a list of objects", &raw)
	for i, one := range raw {
		in, err := parseObject(one)
		if err != nil {
			o.fault("caps", "must hold objects alone")
			return nil
		}
		t := ledger.CapTerms{Currency: in.currency("currency"), Ceiling: in.minor("ceiling_minor", 0)}
		if !in.has("cap_minor") {
			in.fault("cap_minor", "is required")
		}
		t.Minor = in.minor("cap_minor", 1)
		if slices.ContainsFunc(caps, func(c ledger.CapTerms) bool { return c.Currency == t.Currency }) {
			in.fault("currency", "has a cap already")
		}
		if err := in.done(); err != nil {
			o.fault("caps["+strconv.Itoa(i)+"]", "%s", problemOf(err).message)
		}
		caps = append(caps, t)
	}
	return caps
}

// rawObject is an object that is read later.
type rawObject []byte

func (r *rawObject) UnmarshalJSON(b []byte) error { *r = slices.Clone(b); return nil }
