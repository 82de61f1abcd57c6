package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
)

type (
	issueKey struct {
		Label       string   `help:"What the key is for, such as the program that will hold it." placeholder:"TEXT"`
		ForRun      string   `name:"run" help:"Name of a run: the same run has one key, however often it is issued." placeholder:"RUN"`
		Environment string   `help:"Environment of the run." placeholder:"NAME"`
		Rule        []string `help:"An operation that the key may use, such as intents:create; as often as needed." placeholder:"RULE"`
		Cap         []string `help:"Cap of a currency in minor units, such as usd=60000; as often as needed. Without one no money can be moved." placeholder:"CURRENCY=MINOR"`
		Ceiling     []string `help:"What one charge in a currency may take at most, in minor units." placeholder:"CURRENCY=MINOR"`
		CountCap    int64    `help:"How many charges there may be, over all currencies." placeholder:"N"`
		Window      string   `help:"What caps count over: total (the key's life) or day (a day of UTC)." enum:"total,day" default:"total" placeholder:"WINDOW"`
		Mode        string   `help:"open counts, report also writes down what enforce would refuse, enforce refuses." enum:"open,report,enforce" default:"enforce" placeholder:"MODE"`
		Manifest    bool     `help:"Bind the key to a manifest of bills, which billingd registers."`
		Expires     string   `help:"When the key ends, or how long it lives, such as 72h or 30d." placeholder:"TIME"`
	}
	raiseKey struct {
		Key      string `arg:"" help:"Id of the vault key."`
		Currency string `arg:"" help:"Currency of the cap, such as usd."`
		To       *int64 `help:"The cap from now on, in minor units; it may be lower." placeholder:"MINOR" xor:"cap" required:""`
		By       *int64 `help:"By how much the cap rises, in minor units." placeholder:"MINOR" xor:"cap" required:""`
		Until    string `help:"When the former cap holds again, or how long from now on, such as 72h; left out, never." placeholder:"TIME"`
		Reason   string `required:"" help:"Why, for whoever reads the record later." placeholder:"TEXT"`
	}
	extendKey struct {
		Key    string `arg:"" help:"Id of the vault key."`
		Until  string `required:"" help:"When the key ends, or how long from now on, such as 30d." placeholder:"TIME"`
		Reason string `required:"" help:"Why, for whoever reads the record later." placeholder:"TEXT"`
	}
	rotateKey struct {
		Key   string        `arg:"" help:"Id of the vault key."`
		Grace time.Duration `help:"How long the older secrets go on working." default:"10m" placeholder:"DURATION"`
	}
	revokeKey struct {
		Key    string `arg:"" help:"Id of the vault key."`
		Reason string `required:"" help:"Why, for whoever reads the record later." placeholder:"TEXT"`
	}
	releaseAmount struct {
		Subject string `arg:"" help:"What is held: the id of an intent, or key: and the idempotency key of a legacy charge or a refund."`
		Reason  string `required:"" help:"How it is known that no money moved, for whoever reads the record later." placeholder:"TEXT"`
	}
)

// Help is what vault-keys issue --help says beyond the flags.
func (issueKey) Help() string {
	return `The rules are intents:create, intents:confirm, intents:cancel, intents:read, charges:create, charges:read, customers:read, payment_methods:read, account:read, refunds:create, refunds:read and events:read.

The secret is printed alone, so that it can be kept without being seen:

    export STRIPE_API_KEY=$(billingctl vault-keys issue --label agent --rule intents:create --rule intents:confirm --cap usd=60000 --window day)`
}

// Run issues the key.
func (i issueKey) Run(s *shell) error {
	fields, err := i.fields()
	if err != nil {
		return err
	}
	c, err := s.proxy()
	if err != nil {
		return err
	}
	document, err := post(s, c, "/admin/v1/vault-keys", fields)
	if err != nil {
		return namingFlag(err, "expires_at", "--expires")
	}
	var v struct {
		VaultKey vaultKey `json:"vault_key"`
		Secret   string   `json:"secret"`
	}
	if err := json.Unmarshal(document, &v); err != nil || v.Secret == "" {
		return fmt.Errorf("read the answer of the spend proxy: the vault key's secret is not in it")
	}
	if err := s.secret(document, v.Secret); err != nil {
		return err
	}
	if len(v.VaultKey.Secrets) > 1 {
		if _, err := fmt.Fprintln(s.Err, "The run has this key already, with the terms below; this is one more secret for it."); err != nil {
			return err
		}
	}
	caps := make([]string, len(v.VaultKey.Caps))
	for i, c := range v.VaultKey.Caps {
		caps[i] = display(c.Cap, c.Currency)
		if c.Ceiling > 0 {
			caps[i] += " (" + display(c.Ceiling, c.Currency) + " a charge)"
		}
	}
	if len(caps) == 0 {
		caps = []string{"no cap, so no money can be moved"}
	}
	if v.VaultKey.Manifest {
		caps = []string{"capped by its manifest"}
	}
	over := map[string]string{"total": "in all", "day": "a day"}[v.VaultKey.Window]
	_, err = fmt.Fprintf(s.Err, "vault key %s (%s): %s, %s %s; %s\n", v.VaultKey.ID, v.VaultKey.Label, v.VaultKey.Mode, strings.Join(caps, ", "), over, v.VaultKey.life())
	return err
}

// fields are the request's; what was not given is left to the proxy.
func (i issueKey) fields() (map[string]any, error) {
	if i.ForRun == "" && (i.Label == "" || len(i.Rule) == 0) {
		return nil, usage("--label and one --rule at least are needed, or --run and --environment")
	}
	fields := map[string]any{"mode": i.Mode, "window": i.Window}
	for name, value := range map[string]string{"label": i.Label, "run": i.ForRun, "environment": i.Environment} {
		if value != "" {
			fields[name] = value
		}
	}
	if len(i.Rule) > 0 {
		fields["rules"] = i.Rule
	}
	if i.Manifest {
		fields["manifest"] = true
	}
	if i.CountCap != 0 {
		fields["count_cap"] = i.CountCap
	}
	if i.Expires != "" {
		at, err := timeFlag("--expires", i.Expires)
		if err != nil {
			return nil, err
		}
		fields["expires_at"] = at
	}
	limits, err := minorOf("--cap", i.Cap)
	if err != nil {
		return nil, err
	}
	ceilings, err := minorOf("--ceiling", i.Ceiling)
	if err != nil {
		return nil, err
	}
	type terms struct {
		Currency string `json:"currency"`
		Cap      int64  `json:"cap_minor"`
		Ceiling  int64  `json:"ceiling_minor,omitempty"`
	}
	var caps []terms
	for currency, minor := range limits {
		caps = append(caps, terms{currency, minor, ceilings[currency]})
	}
	for currency := range ceilings {
		if _, ok := limits[currency]; !ok {
			return nil, usage("--ceiling %s=… needs --cap %s=…", currency, currency)
		}
	}
	slices.SortFunc(caps, func(a, b terms) int { return strings.Compare(a.Currency, b.Currency) })
	if caps != nil {
		fields["caps"] = caps
	}
	return fields, nil
}

// minorOf reads amounts in minor units, one a currency: of two that contradict
// each other neither is taken.
func minorOf(flag string, given []string) (map[string]int64, error) {
	amounts := map[string]int64{}
	for _, pair := range given {
		currency, amount, _ := strings.Cut(pair, "=")
		minor, err := strconv.ParseInt(amount, 10, 64)
		if err != nil || currency == "" {
			return nil, usage("%s must be a currency and an amount in minor units, such as usd=60000", flag)
		}
		if _, again := amounts[currency]; again {
			return nil, usage("%s has %s twice", flag, currency)
		}
		amounts[currency] = minor
	}
	return amounts, nil
}

// secret prints a secret alone, and says on the other stream that this was it.
func (s *shell) secret(document json.RawMessage, secret string) error {
	if err := show(s, document, func(json.RawMessage) error { return s.printf("%s\n", secret) }); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.Err, "This secret is shown now and never again: keep it where secrets are kept.")
	return err
}

// timeFlag reads a time, a day, whose beginning in UTC is meant, or a duration,
// which the proxy counts from its own now: that of a stand-in's clock, if it
// follows one.
func timeFlag(flag, value string) (string, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, value); err == nil {
			return t.UTC().Format(time.RFC3339), nil
		}
	}
	if isDuration(value) {
		return value, nil
	}
	return "", usage("%s must be a time such as 2026-12-31T23:59:59Z, a day such as 2026-12-31, or how long from now on, such as 72h or 30d", flag)
}

func isDuration(value string) bool {
	if days, ok := strings.CutSuffix(value, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return err == nil && n > 0
	}
	d, err := time.ParseDuration(value)
	return err == nil && d > 0
}

// namingFlag makes a refusal of a field's value a fault of the flag that gave it.
func namingFlag(err error, field, flag string) error {
	if p, ok := errors.AsType[*client.Problem](err); ok && p.Status == http.StatusBadRequest {
		if _, what, ok := strings.Cut(" "+strings.ReplaceAll(p.Detail, `"`, ""), " "+field+" "); ok {
			return usage("%s %s", flag, what)
		}
	}
	return err
}

// Run changes the cap.
func (r raiseKey) Run(s *shell) error {
	fields := map[string]any{"currency": r.Currency, "reason": r.Reason}
	if r.To != nil {
		fields["to_minor"] = *r.To
	} else {
		fields["by_minor"] = *r.By
	}
	if r.Until != "" {
		at, err := timeFlag("--until", r.Until)
		if err != nil {
			return err
		}
		fields["until"] = at
	}
	document, err := s.change(r.Key, "/raises", fields)
	if err != nil {
		return namingFlag(err, "until", "--until")
	}
	return show(s, document, func(v vaultKey) error { return v.write(s) })
}

// Run extends the key.
func (e extendKey) Run(s *shell) error {
	at, err := timeFlag("--until", e.Until)
	if err != nil {
		return err
	}
	former, err := s.vaultKey(e.Key)
	if err != nil {
		return err
	}
	document, err := s.change(e.Key, "/extend", map[string]any{"expires_at": at, "reason": e.Reason})
	if err != nil {
		return namingFlag(err, "expires_at", "--until")
	}
	if err := show(s, document, func(v vaultKey) error { return s.printf("vault key %s: %s\n", v.ID, v.life()) }); err != nil {
		return err
	}
	var v vaultKey
	if err := json.Unmarshal(document, &v); err == nil && former.end() == v.end() && (v.ExpiresAt == nil || v.ExpiresAt.Format(time.RFC3339) != at) {
		_, err = fmt.Fprintln(s.Err, "It worked for longer already, which is left as it is; revoke ends a key.")
		return err
	}
	return nil
}

// Run rotates the key.
func (r rotateKey) Run(s *shell) error {
	document, err := s.change(r.Key, "/rotate", map[string]any{"grace": r.Grace.String()})
	if err != nil {
		return err
	}
	var v struct {
		Secret string `json:"secret"`
	}
	if err := json.Unmarshal(document, &v); err != nil || v.Secret == "" {
		return fmt.Errorf("read the answer of the spend proxy: the vault key's secret is not in it")
	}
	if err := s.secret(document, v.Secret); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Err, "vault key %s: its older secrets work for %s more\n", r.Key, r.Grace)
	return err
}

// Run revokes the key.
func (r revokeKey) Run(s *shell) error {
	document, err := s.change(r.Key, "/revoke", map[string]any{"reason": r.Reason})
	if err != nil {
		return err
	}
	return show(s, document, func(v vaultKey) error { return s.printf("vault key %s: %s\n", v.ID, v.life()) })
}

// Run releases what is held.
func (r releaseAmount) Run(s *shell) error {
	c, err := s.proxy()
	if err != nil {
		return err
	}
	document, err := post(s, c, "/admin/v1/reservations/"+url.PathEscape(r.Subject)+"/release", map[string]any{"reason": r.Reason})
	if err != nil {
		return err
	}
	return show(s, document, func(v struct{ Subject string }) error { return s.printf("%s is released\n", v.Subject) })
}
