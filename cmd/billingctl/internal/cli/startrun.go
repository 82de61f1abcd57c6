package cli

import (
	"net/url"
)

// startRun declares what is due.
type startRun struct {
	Period string `arg:"" help:"Billing period: 2026-11, 2026-Q3 or 2026."`
}

// Help is what runs start --help says beyond the flags.
func (startRun) Help() string {
	return `Runs start by themselves: every replica looks for what is due. This looks at once, and says how many dues of the period were new. It may be sent at any time, beside the replicas and as often as anybody likes: nothing is declared twice, and nothing before it is due. The last line:

    start: period=2026-11 new=0`
}

// Run starts the run.
func (r startRun) Run(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	document, err := c.Post(s.ctx, "/v1/runs/"+url.PathEscape(r.Period)+"/start", nil)
	if err != nil {
		return err
	}
	type started struct {
		BillingPeriod string `json:"billing_period"`
		New           int    `json:"new"`
	}
	return show(s, document, func(v started) error {
		return s.printf("start: period=%s new=%d\n", v.BillingPeriod, v.New)
	})
}
