package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/domain"
)

// vaultKeysCommand looks after the spend proxy: who may call Stripe through it,
// for what and up to how much.
type vaultKeysCommand struct {
	AdminURL string `help:"Address of the spend proxy's admin API." env:"SPENDPROXY_ADMIN_URL" default:"http://127.0.0.1:8081" placeholder:"URL"`

	Issue   issueKey      `cmd:"" help:"Issue a vault key. Its secret is printed once."`
	List    listKeys      `cmd:"" help:"Print vault keys and what is used of them."`
	Show    showKey       `cmd:"" help:"Print one vault key with its secrets' last characters and its changes."`
	Raise   raiseKey      `cmd:"" help:"Raise or lower the cap of a currency, for good or until a time."`
	Extend  extendKey     `cmd:"" help:"Give a vault key another end."`
	Rotate  rotateKey     `cmd:"" help:"Give a vault key a new secret; the older ones retire after a grace."`
	Revoke  revokeKey     `cmd:"" help:"End a vault key: its next request is refused."`
	Audit   auditCalls    `cmd:"" help:"Print what callers asked for, and what became of it."`
	Books   readBooks     `cmd:"" help:"Print what was charged and what is held, per currency."`
	Release releaseAmount `cmd:"" help:"Give up what is held for a charge of which no evidence can come."`
}

// Help is what vault-keys --help says beyond the flags.
func (vaultKeysCommand) Help() string {
	return `The spend proxy is named by SPENDPROXY_ADMIN_URL or --admin-url; SPENDPROXY_ADMIN_TOKEN holds its admin token.

A vault key is named by its id, as list shows it. Amounts are given in minor units, as at Stripe: usd=60000 is $600.00, jpy=60000 is ¥60000. Times are RFC 3339 (2026-12-31T23:59:59Z), a day, whose beginning in UTC is meant, or how long from now on (72h, 30d).`
}

type (
	listKeys struct {
		OfRun string `name:"run" help:"Keys of one run alone." placeholder:"RUN"`
		Label string `help:"Keys of one label alone." placeholder:"LABEL"`
		Live  bool   `help:"Leave out what is revoked or has expired."`
	}
	showKey struct {
		Key string `arg:"" help:"Id of the vault key."`
	}
)

// vaultKey is what is shown of a vault key.
type vaultKey struct {
	ID          string     `json:"id"`
	Label       string     `json:"label"`
	Environment string     `json:"environment"`
	Run         string     `json:"run"`
	Rules       []string   `json:"rules"`
	Mode        string     `json:"mode"`
	Window      string     `json:"window"`
	Manifest    bool       `json:"manifest"`
	ExpiresAt   *time.Time `json:"expires_at"`
	RevokedAt   *time.Time `json:"revoked_at"`
	Reason      string     `json:"revoked_because"`
	CreatedAt   time.Time  `json:"created_at"`
	CreatedBy   string     `json:"created_by"`
	CountCap    int64      `json:"count_cap"`
	Caps        []struct {
		Currency   string `json:"currency"`
		Cap        int64  `json:"cap_minor"`
		Ceiling    int64  `json:"ceiling_minor"`
		Spent      int64  `json:"spent_minor"`
		Held       int64  `json:"held_minor"`
		Left       int64  `json:"left_minor"`
		Charges    int64  `json:"charges"`
		ByOperator bool   `json:"by_operator"`
	} `json:"caps"`
	Secrets []struct {
		Last4     string     `json:"last4"`
		CreatedAt time.Time  `json:"created_at"`
		RetiresAt *time.Time `json:"retires_at"`
	} `json:"secrets"`
	Raises []struct {
		What     string     `json:"what"`
		Currency string     `json:"currency"`
		From     int64      `json:"from_minor"`
		To       int64      `json:"to_minor"`
		Until    *time.Time `json:"until"`
		Reason   string     `json:"reason"`
		By       string     `json:"by"`
		At       time.Time  `json:"at"`
	} `json:"raises"`
}

// proxy is a client of the spend proxy that the command line names.
func (s *shell) proxy() (*client.Client, error) {
	token, set := os.LookupEnv("SPENDPROXY_ADMIN_TOKEN")
	switch {
	case !set:
		return nil, usage("SPENDPROXY_ADMIN_TOKEN is needed: the admin token of the spend proxy")
	case strings.TrimSpace(token) == "":
		return nil, usage("SPENDPROXY_ADMIN_TOKEN is set but blank")
	}
	c, err := client.NewProxy(s.line.VaultKeys.AdminURL, token, plainName(actor()))
	if err != nil {
		return nil, usageError{fmt.Errorf("--admin-url: %w", err)}
	}
	return c, nil
}

// plainName is a name in the 64 printable characters that the proxy takes.
func plainName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e {
			return '?'
		}
		return r
	}, name)
	return strings.TrimSpace(name[:min(len(name), 64)])
}

// keyPath is the path of a vault key. A secret in an id's place is not sent
// on, where it would be logged as part of a path.
func keyPath(id, rest string) (string, error) {
	if strings.HasPrefix(id, "vk_") {
		return "", usage("this is a secret; a vault key is named by its id, as vault-keys list shows it")
	}
	return "/admin/v1/vault-keys/" + url.PathEscape(id) + rest, nil
}

// vaultKey reads a vault key; one that does not exist is the error.
func (s *shell) vaultKey(id string) (k vaultKey, err error) {
	c, err := s.proxy()
	if err != nil {
		return k, err
	}
	path, err := keyPath(id, "")
	if err == nil {
		err = c.Read(s.ctx, path, nil, &k)
	}
	return k, err
}

// change posts a change to a vault key.
func (s *shell) change(id, what string, fields map[string]any) (json.RawMessage, error) {
	c, err := s.proxy()
	if err != nil {
		return nil, err
	}
	path, err := keyPath(id, what)
	if err != nil {
		return nil, err
	}
	return post(s, c, path, fields)
}

func post(s *shell, c *client.Client, path string, fields map[string]any) (json.RawMessage, error) {
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	return c.Post(s.ctx, path, body)
}

// pages reads all pages of a list, up to most items; more says that there are
// others.
func pages(s *shell, path, list string, query url.Values, most int) (items []json.RawMessage, more bool, err error) {
	c, err := s.proxy()
	if err != nil {
		return nil, false, err
	}
	for {
		query.Set("limit", strconv.Itoa(min(most-len(items), pageMost)))
		var page map[string]json.RawMessage
		if err := c.Read(s.ctx, path, query, &page); err != nil {
			return nil, false, err
		}
		var part []json.RawMessage
		next := ""
		if err := json.Unmarshal(page[list], &part); err != nil {
			return nil, false, fmt.Errorf("read the answer of the spend proxy: %w", err)
		}
		if raw, ok := page["next"]; ok {
			if err := json.Unmarshal(raw, &next); err != nil {
				return nil, false, fmt.Errorf("read the answer of the spend proxy: %w", err)
			}
		}
		items = append(items, part...)
		if next == "" || len(items) >= most || len(part) == 0 {
			return items, next != "", nil
		}
		query.Set("after", next)
	}
}

const (
	pageMost = 500
	keysMost = 10_000
)

// showList prints items as one document, or as table makes of them.
func showList[T any](s *shell, list string, items []json.RawMessage, table func([]T) error) error {
	if items == nil {
		items = []json.RawMessage{}
	}
	document, err := json.Marshal(map[string][]json.RawMessage{list: items})
	if err != nil {
		return err
	}
	return show(s, document, func(v map[string][]T) error { return table(v[list]) })
}

// Run prints the keys, a line for each currency.
func (l listKeys) Run(s *shell) error {
	query := url.Values{}
	for name, value := range map[string]string{"run": l.OfRun, "label": l.Label} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if l.Live {
		query.Set("live", "true")
	}
	items, more, err := pages(s, "/admin/v1/vault-keys", "vault_keys", query, keysMost)
	if err != nil {
		return err
	}
	return showList(s, "vault_keys", items, func(keys []vaultKey) error {
		if len(keys) == 0 {
			return s.printf("no vault keys\n")
		}
		table := console.NewTable("id", "label", "mode", "window", "cap#", "spent#", "held#", "left#", "charges#", "until")
		for _, k := range keys {
			for _, c := range k.Caps {
				table.Row(k.ID, k.Label, k.Mode, k.Window, display(c.Cap, c.Currency), display(c.Spent, c.Currency), display(c.Held, c.Currency), display(c.Left, c.Currency), c.Charges, k.end())
			}
			if len(k.Caps) == 0 {
				table.Row(k.ID, k.Label, k.Mode, k.Window, "", "", "", "", "", k.end())
			}
		}
		if err := table.Write(s.Out, ""); err != nil {
			return err
		}
		if more {
			return s.printf("and more: narrow the list down by --run or --label\n")
		}
		return nil
	})
}

// end is when a key ends, or that it has been ended.
func (k vaultKey) end() string {
	if k.RevokedAt != nil {
		return "revoked " + moment(k.RevokedAt)
	}
	return moment(k.ExpiresAt)
}

// life is how long a key works, in words.
func (k vaultKey) life() string {
	switch {
	case k.RevokedAt != nil:
		return k.end()
	case k.ExpiresAt == nil:
		return "until it is revoked"
	}
	return "until " + k.end()
}

// display is an amount for people.
func display(minor int64, currency string) string {
	return domain.Money{Minor: minor, Currency: domain.Currency(currency)}.String()
}

// Run prints the key.
func (k showKey) Run(s *shell) error {
	c, err := s.proxy()
	if err != nil {
		return err
	}
	path, err := keyPath(k.Key, "")
	if err != nil {
		return err
	}
	document, err := c.Get(s.ctx, path, nil)
	if err != nil {
		return err
	}
	return show(s, document, func(v vaultKey) error { return v.write(s) })
}

// write prints the whole of a key.
func (k vaultKey) write(s *shell) error {
	lines := console.NewTable("vault key", k.ID)
	lines.Row("label", k.Label)
	if k.Run != "" {
		lines.Row("run", k.Run+" in "+k.Environment)
	}
	lines.Row("mode", k.Mode)
	lines.Row("rules", strings.Join(k.Rules, " "))
	lines.Row("bound to a manifest", k.Manifest)
	lines.Row("caps count over", map[string]string{"total": "the key's life", "day": "a day of UTC"}[k.Window])
	if k.CountCap > 0 {
		lines.Row("charges at most", k.CountCap)
	}
	lines.Row("issued", moment(&k.CreatedAt)+" by "+k.CreatedBy)
	lines.Row("works", k.life())
	if k.RevokedAt != nil {
		lines.Row("revoked because", k.Reason)
	}
	caps := console.NewTable("currency", "cap#", "one charge at most#", "spent#", "held#", "left#", "charges#", "follows")
	for _, c := range k.Caps {
		ceiling, follows := "", "the manifest"
		if c.Ceiling > 0 {
			ceiling = display(c.Ceiling, c.Currency)
		}
		if c.ByOperator || !k.Manifest {
			follows = "the operator"
		}
		caps.Row(c.Currency, display(c.Cap, c.Currency), ceiling, display(c.Spent, c.Currency), display(c.Held, c.Currency), display(c.Left, c.Currency), c.Charges, follows)
	}
	secrets := console.NewTable("secret", "issued", "retires")
	for _, x := range k.Secrets {
		secrets.Row("…"+x.Last4, moment(&x.CreatedAt), moment(x.RetiresAt))
	}
	changes := console.NewTable("at", "change", "from#", "to#", "until", "by", "reason")
	for _, r := range k.Raises {
		from, to := "", ""
		if r.Currency != "" {
			from, to = display(r.From, r.Currency), display(r.To, r.Currency)
		}
		changes.Row(moment(&r.At), r.What, from, to, moment(r.Until), r.By, r.Reason)
	}
	return s.tables(lines, caps, secrets, changes)
}
