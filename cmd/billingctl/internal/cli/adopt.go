package cli

import (
	"encoding/json"
	"strings"
)

// adoptCommand confirms a database to the service that runs on it.
type adoptCommand struct {
	Reason string `required:"" help:"Why this database is to be collected on, for whoever reads the record later." placeholder:"TEXT"`
}

// Run adopts the database.
func (a adoptCommand) Run(s *shell) error {
	if strings.TrimSpace(a.Reason) == "" {
		return usage("--reason must say why")
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]string{"reason": a.Reason})
	if err != nil {
		return err
	}
	document, err := c.Post(s.ctx, "/v1/environment/adopt", body)
	if err != nil {
		return err
	}
	return show(s, document, func(v struct {
		Name             string `json:"name"`
		StripeAccount    string `json:"stripe_account"`
		SystemIdentifier string `json:"system_identifier"`
		Timeline         int64  `json:"timeline"`
	}) error {
		if v.StripeAccount == "" {
			v.StripeAccount = "unknown"
		}
		return s.printf("adopted: environment %s, Stripe account %s, server %s, timeline %d; bills are collected from now on\n", v.Name, v.StripeAccount, v.SystemIdentifier, v.Timeline)
	})
}
