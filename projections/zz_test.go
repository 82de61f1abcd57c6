package projections_test

import (
	"fmt"
	"testing"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

func BenchmarkReads(b *testing.B) {
	log := projectiontest.New(b)
	var periods []domain.Event
	for i := range 1000 {
		id := domain.CustomerID(fmt.Sprintf("c%d", i))
		log.Given(id, registered(id), requested(id, november, 1+i%5))
		periods = append(periods, due("one", domain.PeriodOf(domain.Monthly, 2000+i/12, 1+i%12)))
	}
	log.Given("one", periods...)
	log.Project(projections.All()...)
	r := log.Reads()
	p := projections.Page{Limit: 1}
	for name, f := range map[string]func() error{
		"customers": func() error { return second(r.Customers(b.Context(), p)) },
		"customer": func() error { return second(r.Customer(b.Context(), "c1")) },
		"charges": func() error { return second(r.Charges(b.Context(), projections.ChargesQuery{Page: p, Period: "2026-11"})) },
		"bills": func() error { return second(r.Bills(b.Context(), "one", p)) },
		"runs": func() error { return second(r.Runs(b.Context(), p)) },
		"run": func() error { return second(r.Run(b.Context(), "2026-11")) },
		"facts": func() error { return second(r.Facts(b.Context(), projections.FactsQuery{Limit: 1, Type: "charge.requested.v1"})) },
		"factsall": func() error { return second(r.Facts(b.Context(), projections.FactsQuery{Limit: 50})) },
		"story": func() error { return second(r.Story(b.Context(), "c1", "2026-11")) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
