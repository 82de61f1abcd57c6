package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client calls one billingd, or one spend proxy. It is safe for concurrent use.
type Client struct {
	name  string // of whom it calls, for errors
	base  *url.URL
	token string
	actor string // sent as X-Actor; empty: not sent
	http  *http.Client
}

// New makes a client of the service at base, such as http://127.0.0.1:8080.
// An empty token sends none.
func New(base, token string) (*Client, error) {
	return newClient("billingd", base, token, "http://127.0.0.1:8080")
}

// NewProxy makes a client of the admin API of the spend proxy at base, which
// writes down that actor was at work.
func NewProxy(base, token, actor string) (*Client, error) {
	c, err := newClient("the spend proxy", base, token, "http://127.0.0.1:8081")
	if err != nil {
		return nil, err
	}
	c.actor = actor
	return c, nil
}

func newClient(name, base, token, example string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("the address of %s must be a URL such as %s", name, example)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = 2 * time.Minute // longer than the service lets anyone wait
	return &Client{name: name, base: u, token: token, http: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Problem is what the service answers when something did not work.
type Problem struct {
	Status    int     `json:"status"`
	Code      string  `json:"code"`
	Detail    string  `json:"detail"`
	RequestID string  `json:"request_id"`
	Errors    []Fault `json:"errors"`
}

// Fault says what is wrong with one field.
type Fault struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// Error names the code and every field at fault.
func (p *Problem) Error() string {
	if p.Code == "" {
		return fmt.Sprintf("the answer has status %d and no reason", p.Status)
	}
	what := []string{p.Detail}
	if len(p.Errors) > 0 {
		what = nil
	}
	for _, f := range p.Errors {
		what = append(what, f.Field+" "+f.Message)
	}
	s := p.Code + ": " + strings.Join(what, "; ")
	if p.Status >= http.StatusInternalServerError && p.RequestID != "" {
		s += " (request " + p.RequestID + ")"
	}
	return s
}

// Passes reports whether the same request may work later: the service could
// not answer it, which says nothing about the request.
func (p *Problem) Passes() bool {
	return p.Status == http.StatusServiceUnavailable || p.Status == http.StatusBadGateway || p.Status == http.StatusGatewayTimeout
}

// answerMost bounds what is read of one answer.
const answerMost = 64 << 20

// Get reads a document. The error is a [*Problem] if the service answered one.
func (c *Client) Get(ctx context.Context, path string, query url.Values) (json.RawMessage, error) {
	req, err := c.request(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return nil, err
	}
	_, body, err := c.do(req)
	return body, err
}

// Copy writes a document of any length to w. An error may come after a part of
// it.
func (c *Client) Copy(ctx context.Context, path string, w io.Writer) error {
	req, err := c.request(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer res.Body.Close()
	if res.StatusCode >= http.StatusMultipleChoices {
		body, err := io.ReadAll(io.LimitReader(res.Body, answerMost))
		if err != nil {
			return fmt.Errorf("read the answer of %s: %w", c.name, err)
		}
		return problemIn(res.StatusCode, body)
	}
	if _, err := io.Copy(w, res.Body); err != nil {
		return fmt.Errorf("read the answer of %s: %w", c.name, err)
	}
	return nil
}

// Read reads a document into a value, passing over what the value has no field
// for.
func (c *Client) Read(ctx context.Context, path string, query url.Values, into any) error {
	document, err := c.Get(ctx, path, query)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(document, into); err != nil {
		return fmt.Errorf("read the answer of %s: %w", path, err)
	}
	return nil
}

// Command dispatches a command. Final is false for a bill that is not decided
// yet. An empty key sends none; wait (such as 10s) may be empty, too.
func (c *Client) Command(ctx context.Context, name, key, wait string, body []byte) (receipt json.RawMessage, final bool, err error) {
	query := url.Values{}
	if wait != "" {
		query.Set("wait", wait)
	}
	req, err := c.request(ctx, http.MethodPost, "/v1/commands/"+url.PathEscape(name), query, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	status, receipt, err := c.do(req)
	return receipt, status == http.StatusOK, err
}

func (c *Client) request(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Request, error) {
	u := *c.base
	raw, err := url.JoinPath(u.String(), path)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	if len(query) > 0 {
		raw += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, raw, body)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.actor != "" {
		req.Header.Set("X-Actor", c.actor)
	}
	return req, nil
}

func (c *Client) do(req *http.Request) (status int, body json.RawMessage, err error) {
	res, err := c.http.Do(req)
	if err != nil {
		return 0, nil, c.unreachable(err)
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, answerMost))
	if err != nil {
		return res.StatusCode, nil, fmt.Errorf("read the answer of %s: %w", c.name, err)
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		return res.StatusCode, nil, problemIn(res.StatusCode, body)
	}
	return res.StatusCode, body, nil
}

// problemIn reads problem details, or the spend proxy's errors.
func problemIn(status int, body []byte) *Problem {
	var v struct {
		Problem
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return &Problem{Status: status}
	}
	if v.Error.Code != "" {
		v.Code, v.Detail = v.Error.Code, v.Error.Message
	}
	v.Status = status
	return &v.Problem
}

// unreachable says what could not be reached, without the method and URL that
// net/http puts in front of it.
func (c *Client) unreachable(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return fmt.Errorf("reach %s: %w", c.name, err)
}
