package parts

import (
	"context"
	"fmt"
	"strings"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
)

// Processors is how the processors stand.
type Processors struct {
	Items []struct {
		Processor    string `json:"processor"`
		BehindEvents int64  `json:"behind_events"`
		Parked       int    `json:"parked"`
		Paused       bool   `json:"paused"`
		LastError    string `json:"last_error"`
	} `json:"items"`
}

// ReadProcessors asks the service.
func ReadProcessors(ctx context.Context, c *client.Client) (p Processors, err error) {
	err = c.Read(ctx, "/v1/processors", nil, &p)
	return p, err
}

// Behind names the processors that are not at the end of the log, or parked
// somebody; it is empty if all is well.
func (p Processors) Behind() string {
	var parts []string
	for _, i := range p.Items {
		if i.BehindEvents == 0 && i.Parked == 0 {
			continue
		}
		part := fmt.Sprintf("%s is %d events behind", i.Processor, i.BehindEvents)
		if i.Paused {
			part += ", being paused"
		}
		if i.Parked > 0 {
			part += fmt.Sprintf(", with %d customers parked", i.Parked)
		}
		if i.LastError != "" {
			part += ", last error " + i.LastError
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}
