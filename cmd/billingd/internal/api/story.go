package api

import (
	"context"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/sagas"
)

// BillStory is everything that is known of one bill: by ourselves, and by the
// spend proxy.
type BillStory struct {
	projections.Story
	Proxy *ProxyStory `json:"proxy,omitempty" doc:"What the spend proxy decided about the bill's calls; not there without one."`
}

// ProxyStory is the bill in the spend proxy's audit.
type ProxyStory struct {
	Calls       []sagas.Verdict `json:"calls" doc:"Oldest first, each before and after."`
	Unavailable string          `json:"unavailable,omitempty" doc:"Why the proxy does not tell; the rest of the story is complete without it."`
}

// verdictsTime bounds the question to the proxy: a story is told without it.
const verdictsTime = 2 * time.Second

func (s *Server) story(ctx context.Context, customer, period string) (b BillStory, err error) {
	if b.Story, err = s.reads.Story(ctx, customer, period); err != nil || s.verdicts == nil {
		return b, err
	}
	p, err := domain.ParsePeriod(period)
	if err != nil {
		return b, err
	}
	ctx, cancel := context.WithTimeout(ctx, verdictsTime)
	defer cancel()
	b.Proxy = &ProxyStory{Calls: []sagas.Verdict{}}
	calls, err := s.verdicts(ctx, domain.CustomerID(customer), p)
	if err != nil {
		b.Proxy.Unavailable = err.Error() // the client's own words: no address, no token
		return b, nil
	}
	b.Proxy.Calls = append(b.Proxy.Calls, calls...)
	return b, nil
}
