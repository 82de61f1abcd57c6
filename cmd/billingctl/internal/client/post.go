package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
)

// Post sends a document and returns the answer. The error is a [*Problem] if
// the service answered one.
func (c *Client) Post(ctx context.Context, path string, body []byte) (json.RawMessage, error) {
	req, err := c.request(ctx, http.MethodPost, path, nil, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	_, answer, err := c.do(req)
	return answer, err
}
