package vault

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// Config is what a Client needs. It prints without its token.
type Config struct {
	// BaseURL is where the admin API is served, without /admin/v1.
	BaseURL *url.URL
	// Token is the proxy's service token.
	Token string
	// Actor is who is written down at the proxy: 1 to 64 printable characters.
	Actor string
	// Timeout bounds each call; a manifest has ten times as long. Zero is 10 s.
	Timeout time.Duration
}

// String shows no token, nor does GoString.
func (c Config) String() string { return "vault " + c.BaseURL.Redacted() }

// GoString is String.
func (c Config) GoString() string { return c.String() }

const (
	defaultTimeout  = 10 * time.Second
	manifestFactor  = 10
	verdictsTime    = 2 * time.Second
	maxAnswer       = 4 << 20
	verdictsOfABill = 500
)

// Client is the spend proxy's admin API as the service uses it. It is safe for
// concurrent use.
type Client struct {
	config Config
	http   *http.Client
}

var _ sagas.Vault = (*Client)(nil)

// New makes a client; it makes no call.
func New(c Config) *Client {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	return &Client{config: c, http: &http.Client{
		Transport: &http.Transport{Proxy: nil, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// String shows no token, nor does GoString.
func (c *Client) String() string { return c.config.String() }

// GoString is String.
func (c *Client) GoString() string { return c.String() }

// key is a vault key on the wire.
type key struct {
	ID        string     `json:"id"`
	ExpiresAt *time.Time `json:"expires_at"`
	RevokedAt *time.Time `json:"revoked_at"`
	Caps      []struct {
		Currency domain.Currency `json:"currency"`
		Cap      int64           `json:"cap_minor"`
		Left     int64           `json:"left_minor"`
	} `json:"caps"`
}

func (k key) read() sagas.VaultKey {
	v := sagas.VaultKey{ID: k.ID}
	if k.ExpiresAt != nil {
		v.Expires = k.ExpiresAt.UTC()
	}
	for _, c := range k.Caps {
		v.Caps = append(v.Caps, sagas.VaultCap{Currency: c.Currency, CapMinor: c.Cap, LeftMinor: c.Left})
	}
	return v
}

// Issue implements sagas.Vault: POST /admin/v1/vault-keys.
func (c *Client) Issue(ctx context.Context, o sagas.VaultOrder) (sagas.VaultKey, string, error) {
	body := map[string]any{"run": o.Run, "environment": o.Environment, "label": o.Label, "expires_at": o.Expires.UTC()}
	var answer struct {
		VaultKey key    `json:"vault_key"`
		Secret   string `json:"secret"`
	}
	if err := c.send(ctx, http.MethodPost, "vault-keys", body, &answer); err != nil {
		return sagas.VaultKey{}, "", err
	}
	switch {
	case answer.VaultKey.ID == "":
		return sagas.VaultKey{}, "", errors.New("the proxy's answer shows no vault key")
	case answer.VaultKey.RevokedAt != nil:
		return sagas.VaultKey{}, "", fmt.Errorf("%w: the run's vault key %s is revoked", sagas.ErrVaultRefused, answer.VaultKey.ID)
	case !strings.HasPrefix(answer.Secret, "vk_"):
		return sagas.VaultKey{}, "", errors.New("the proxy's answer shows no secret")
	}
	return answer.VaultKey.read(), answer.Secret, nil
}

// Key implements sagas.Vault: GET /admin/v1/vault-keys/{id}.
func (c *Client) Key(ctx context.Context, id string) (sagas.VaultKey, error) {
	var answer key
	if err := c.send(ctx, http.MethodGet, "vault-keys/"+url.PathEscape(id), nil, &answer); err != nil {
		return sagas.VaultKey{}, err
	}
	return answer.read(), nil
}

// Extend implements sagas.Vault: POST /admin/v1/vault-keys/{id}/extend.
func (c *Client) Extend(ctx context.Context, id string, until time.Time, reason string) error {
	return c.send(ctx, http.MethodPost, "vault-keys/"+url.PathEscape(id)+"/extend", map[string]any{"expires_at": until.UTC(), "reason": reason}, nil)
}

// line is an entry on the wire.
type line struct {
	CustomerID       domain.CustomerID `json:"customer_id"`
	BillingPeriod    domain.Period     `json:"billing_period"`
	AmountMinor      int64             `json:"amount_minor"`
	Currency         domain.Currency   `json:"currency"`
	StripeCustomerID string            `json:"stripe_customer_id"`
	Fixed            bool              `json:"fixed"`
	Withdrawn        bool              `json:"withdrawn"`
}

// Register implements sagas.Vault: PUT /admin/v1/vault-keys/{id}/manifest, one
// line an entry, sent while they are read.
func (c *Client) Register(ctx context.Context, id string, entries iter.Seq[sagas.VaultEntry]) (sagas.Registered, error) {
	ctx, cancel := context.WithTimeout(ctx, manifestFactor*c.config.Timeout)
	defer cancel()
	body, lines := io.Pipe()
	sent := 0
	written := make(chan struct{})
	go func() {
		defer close(written)
		buffered := bufio.NewWriterSize(lines, 64<<10)
		encoder := json.NewEncoder(buffered)
		for e := range entries {
			if encoder.Encode(line{e.CustomerID, e.Period, e.Amount.Minor, e.Amount.Currency, e.StripeCustomerID, e.Fixed, e.Withdrawn}) != nil {
				return // the reader is gone
			}
			sent++
		}
		_ = lines.CloseWithError(buffered.Flush())
	}()
	var answer struct {
		Received     int `json:"received"`
		RefusedCount int `json:"refused_count"`
		Refused      []struct {
			CustomerID domain.CustomerID `json:"customer_id"`
			Code       string            `json:"code"`
			Message    string            `json:"message"`
		} `json:"refused"`
	}
	err := c.do(ctx, http.MethodPut, "vault-keys/"+url.PathEscape(id)+"/manifest", "application/x-ndjson", body, &answer)
	body.Close()
	<-written
	if err != nil {
		return sagas.Registered{}, err
	}
	if answer.Received != sent {
		return sagas.Registered{}, fmt.Errorf("the proxy received %d of %d entries", answer.Received, sent)
	}
	r := sagas.Registered{RefusedCount: answer.RefusedCount}
	for _, e := range answer.Refused {
		r.Refused = append(r.Refused, sagas.RefusedEntry{CustomerID: e.CustomerID, Code: e.Code, Message: e.Message})
	}
	return r, nil
}

// Verdicts implements sagas.Vault: GET /admin/v1/audit, for two seconds at most.
func (c *Client) Verdicts(ctx context.Context, id domain.CustomerID, p domain.Period) ([]sagas.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, verdictsTime)
	defer cancel()
	verdicts := []sagas.Verdict{}
	for after := ""; ; {
		query := url.Values{"customer": {string(id)}, "period": {p.String()}, "limit": {strconv.Itoa(verdictsOfABill)}}
		if after != "" {
			query.Set("after", after)
		}
		var page struct {
			Calls []sagas.Verdict `json:"calls"`
			Next  string          `json:"next"`
		}
		if err := c.send(ctx, http.MethodGet, "audit?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		verdicts = append(verdicts, page.Calls...)
		if page.Next == "" || page.Next == after || len(page.Calls) == 0 || len(verdicts) >= verdictsOfABill {
			return verdicts, nil
		}
		after = page.Next
	}
}

func (c *Client) send(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	if body == nil {
		return c.do(ctx, method, path, "", nil, answer)
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.do(ctx, method, path, "application/json", strings.NewReader(string(text)), answer)
}

// do makes one call. What it returns names the call and what the proxy says
// about it; never what was sent, nor the answer's body.
func (c *Client) do(ctx context.Context, method, path, contentType string, body io.Reader, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.config.BaseURL.String(), "/")+"/admin/v1/"+path, body)
	if err != nil {
		return errors.New("the spend proxy's address cannot be used")
	}
	req.Header.Set("Authorization", "Bearer "+c.config.Token)
	req.Header.Set("X-Actor", c.config.Actor)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("the spend proxy did not answer in time")
		}
		return errors.New("the spend proxy cannot be reached")
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil || len(text) > maxAnswer:
		return errors.New("the spend proxy's answer cannot be read")
	case res.StatusCode >= 200 && res.StatusCode < 300:
		if answer != nil && json.Unmarshal(text, answer) != nil {
			return errors.New("the spend proxy's answer is not what was asked for")
		}
		return nil
	}
	var refusal struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	_ = json.Unmarshal(text, &refusal) // without a code the status tells
	switch res.StatusCode {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusGone, http.StatusUnprocessableEntity:
		return fmt.Errorf("%w: %d %s", sagas.ErrVaultRefused, res.StatusCode, plain(refusal.Error.Code))
	}
	return fmt.Errorf("the spend proxy answers %d %s", res.StatusCode, plain(refusal.Error.Code))
}

// plain is s if it is made like a code.
func plain(s string) string {
	for _, c := range s {
		if c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return ""
		}
	}
	return s
}
