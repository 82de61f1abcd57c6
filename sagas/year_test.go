package sagas_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// TestSeededYear lets customers of all zones, anchors and cadences go through 14
// months of random changes, dues declared early by hand, declines, outages of Stripe and restarts, with weeks in
// which nothing runs, and compares every due and every charge with the model in
// year_model_test.go: 0 differences. YEAR_CUSTOMERS and YEAR_SEED choose another
// year; make year takes 2,000 customers.
func TestSeededYear(t *testing.T) {
	t.Parallel()
	number := func(name string, otherwise int) int {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil {
			return otherwise
		}
		return n
	}
	seed := number("YEAR_SEED", 1)
	y := &year{
		rig: rigOn(t, pgtest.Pool(t)), random: rand.New(rand.NewPCG(uint64(seed), 14)), model: modelYear{customers: map[string]*modelCustomer{}},
		now: time.Date(2026, 12, 28, 12, 0, 0, 0, time.UTC), started: map[string]bool{},
	}
	y.stripe.SetClock(y.now)
	y.door = y.start(options{noProcessors: true})
	for _, id := range customers(number("YEAR_CUSTOMERS", 150)) {
		y.ids = append(y.ids, string(id))
		c := &modelCustomer{card: y.random.IntN(10) > 0}
		y.model.customers[string(id)] = c
		y.must(commands.Of(commands.NewRegisterCustomer(id, "cus_"+string(id[5:]), cardOf(c.card))))
		y.activate(id, c)
	}
	end := time.Date(2028, 3, 1, 15, 0, 0, 0, time.UTC)
	for y.now.Before(end) {
		y.step()
	}
	// In the end everybody has a card and nobody is paused: what is owed is paid.
	y.run(up)
	for _, id := range y.ids {
		c := y.model.customers[id]
		if !c.card {
			y.card(domain.CustomerID(id), c)
		}
		if c.paused() {
			y.resume(domain.CustomerID(id), c)
		}
	}
	y.look()
	y.compare()
}

// mode is what runs.
type mode int

const (
	up      mode = iota // two services
	noMoney             // services without collectors: dues are declared, nothing is charged
	down                // nothing but the door through which commands come
)

type year struct {
	*rig
	random   *rand.Rand
	model    modelYear
	now      time.Time
	ids      []string
	door     *service
	mode     mode
	services []*service
	started  map[string]bool // customer and start date: the key of an activation
	changes  int
}

func (y *year) must(req commands.Request) { y.t.Helper(); y.door.must(req) }

// key is another caller's key each time.
func (y *year) key() domain.Key {
	y.changes++
	return domain.Key(fmt.Sprint("change-", y.changes))
}

func cardOf(good bool) string {
	if good {
		return "pm_card_visa"
	}
	return "pm_card_visa_chargeDeclinedInsufficientFunds"
}

// step lets days or weeks go by, in some mode, and then lets some customers change
// something.
func (y *year) step() {
	modes := []mode{up, up, up, up, up, noMoney, down, down}
	y.run(modes[y.random.IntN(len(modes))])
	days := 1 + y.random.IntN(9)
	if y.mode == down {
		days += y.random.IntN(45)
	}
	y.now = y.now.AddDate(0, 0, days).Add(time.Duration(y.random.IntN(24*60)) * time.Minute)
	var fault string
	if y.mode == up && y.random.IntN(3) == 0 {
		fault = y.fault(sim.Fault{Match: sim.Match{Method: "POST"}, Seed: y.random.Uint64(), Rate: 0.1, Kinds: []sim.Kind{
			sim.CommitThenDrop, sim.DropBeforeCommit, sim.RateLimit429, sim.Gateway502, sim.KeyInUse409,
		}})
	}
	y.stripe.SetClock(y.now)
	y.look()
	if fault != "" {
		y.stripe.ClearFaults(fault)
	}
	for _, id := range y.ids {
		if y.random.IntN(12) == 0 {
			y.change(domain.CustomerID(id), y.model.customers[id])
		}
	}
	y.look()
}

// run changes the mode, and restarts a service now and then where it stays.
func (y *year) run(m mode) {
	if m == y.mode && len(y.services) > 0 && y.random.IntN(4) > 0 {
		return
	}
	if m == y.mode && len(y.services) == 2 {
		y.services[0].stop()
		y.services = append(y.services[1:], y.start(options{concurrency: 24}))
		return
	}
	for _, s := range y.services {
		s.stop()
	}
	y.services, y.mode = nil, m
	switch m {
	case up:
		y.services = []*service{y.start(options{concurrency: 24}), y.start(options{concurrency: 24})}
	case noMoney:
		y.services = []*service{y.start(options{noCollector: true})}
	}
}

// look waits until everything that the mode allows has been done, here as in the
// model.
func (y *year) look() {
	y.t.Helper()
	if y.mode == down {
		return
	}
	y.model.look(y.now, y.mode == up)
	y.within(3*time.Minute, fmt.Sprintf("at %s all is done", y.now), func() bool {
		done := y.count(`SELECT count(*) FROM subscription_schedule WHERE due_at <= $1`, y.now) == 0 && y.services[0].caughtUp()
		if !done || y.mode == noMoney {
			return done
		}
		return y.count(`SELECT count(*) FROM billing_records WHERE state NOT IN ('succeeded', 'declined', 'void', 'waiting')`) == 0 && y.retried()
	})
}

// retried asks once more for what was declined and can be charged now, and says
// whether there was nothing of it.
func (y *year) retried() bool {
	rows, err := y.pool.Query(context.Background(), `SELECT customer_id, billing_period, attempt FROM billing_records WHERE state = 'declined'`)
	if err != nil {
		y.t.Fatal(err)
	}
	defer rows.Close()
	none := true
	for rows.Next() {
		var id, label string
		var attempt int
		if err := rows.Scan(&id, &label, &attempt); err != nil {
			y.t.Fatal(err)
		}
		if c := y.model.customers[id]; !c.card || c.paused() {
			continue
		}
		none = false
		p, err := domain.ParsePeriod(label)
		if err != nil {
			y.t.Fatal(err)
		}
		_, _ = y.door.send(commands.Of(commands.NewRetryCharge(domain.CustomerID(id), p, attempt+1, commands.StepManual))) // refused: asked for by then
	}
	return none
}

// change lets a customer change one thing.
func (y *year) change(id domain.CustomerID, c *modelCustomer) {
	y.t.Helper()
	if !c.sub.ended.IsZero() {
		if y.random.IntN(3) == 0 {
			y.activate(id, c)
		} else if !c.card {
			y.card(id, c)
		}
		return
	}
	if c.paused() && y.random.IntN(2) == 0 {
		y.resume(id, c)
		return
	}
	switch y.random.IntN(16) {
	case 0, 1, 2:
		minor := y.price()
		c.price(y.now, minor)
		y.must(commands.Of(commands.NewChangeSubscriptionAmount(id, minor, "", domain.Period{}, y.now, y.key())))
	case 3, 4, 5:
		anchor := 1 + y.random.IntN(31)
		c.move(y.now, anchor, "")
		y.must(commands.Of(commands.NewChangeSubscriptionSchedule(id, anchor, "", domain.Period{}, y.now, y.key())))
	case 6, 7:
		zone := y.zone()
		c.move(y.now, 0, zone)
		y.must(commands.Of(commands.NewChangeSubscriptionSchedule(id, 0, zone, domain.Period{}, y.now, y.key())))
	case 8, 9, 10:
		if !c.paused() {
			c.sub.pauses = append(c.sub.pauses, [2]time.Time{y.now})
			y.must(commands.Of(commands.NewPauseSubscription(id, "", y.now, y.key())))
		}
	case 11:
		c.cancel(y.now, false)
		y.must(commands.Of(commands.NewCancelSubscription(id, domain.CancelPeriodEnd, "", y.now, y.key())))
	case 12:
		c.cancel(y.now, true)
		y.must(commands.Of(commands.NewCancelSubscription(id, domain.CancelNow, "", y.now, y.key())))
	case 13:
		if !c.paused() { // a person declares the next period before its time
			p, err := domain.ParsePeriod(c.early(y.now).label())
			if err != nil {
				y.t.Fatal(err)
			}
			y.must(commands.Of(commands.NewDeclareBillingDue(id, p)))
		}
	default:
		y.card(id, c)
	}
}

// card gives a customer the other card.
func (y *year) card(id domain.CustomerID, c *modelCustomer) {
	y.t.Helper()
	c.card = !c.card
	y.must(commands.Of(commands.NewChangePaymentMethod(id, cardOf(c.card), time.Time{}, y.key())))
}

func (y *year) resume(id domain.CustomerID, c *modelCustomer) {
	y.t.Helper()
	c.sub.pauses[len(c.sub.pauses)-1][1] = y.now
	y.must(commands.Of(commands.NewResumeSubscription(id, y.now, y.key())))
}

func (y *year) price() int64 { return int64(1000 + 10*y.random.IntN(5000)) }

func (y *year) zone() string {
	zones := []string{
		"Pacific/Kiritimati", "Pacific/Apia", "Pacific/Chatham", "Pacific/Auckland", "Australia/Lord_Howe", "Asia/Tokyo", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Beirut",
		"Africa/Cairo", "Europe/Berlin", "UTC", "Atlantic/Azores", "America/Sao_Paulo", "America/Havana", "America/New_York", "America/Santiago", "America/Los_Angeles",
		"Pacific/Pago_Pago", "Etc/GMT+12",
	}
	return zones[y.random.IntN(len(zones))]
}

// activate starts a subscription of any kind, some weeks ago or some weeks ahead.
func (y *year) activate(id domain.CustomerID, c *modelCustomer) {
	y.t.Helper()
	months := []int{1, 1, 1, 3, 12}[y.random.IntN(5)]
	starts := y.now.AddDate(0, 0, y.random.IntN(100)-40)
	for y.started[string(id)+starts.Format(time.DateOnly)] {
		starts = starts.AddDate(0, 0, 1)
	}
	y.started[string(id)+starts.Format(time.DateOnly)] = true
	s := &modelSubscription{
		months: months, starts: modelDate{starts.Year(), int(starts.Month()), starts.Day()}, currency: []string{"usd", "eur", "jpy", "kwd"}[y.random.IntN(4)],
		terms: []modelTerm{{minor: y.price(), anchor: 1 + y.random.IntN(31), zone: y.zone()}},
	}
	c.activate(s)
	term := s.terms[0]
	y.must(commands.Of(commands.NewActivateSubscription(id, domain.Money{Minor: term.minor, Currency: domain.Currency(s.currency)}, domain.Schedule{
		Cadence:   map[int]domain.Cadence{1: domain.Monthly, 3: domain.Quarterly, 12: domain.Yearly}[months],
		AnchorDay: term.anchor, TimeZone: term.zone, StartsOn: domain.Date{Year: starts.Year(), Month: starts.Month(), Day: starts.Day()},
	})))
}

// compare puts the log's dues and Stripe's charges beside the model.
func (y *year) compare() {
	y.t.Helper()
	dues, charges := map[string][]string{}, map[string][]string{}
	rows, err := y.pool.Query(context.Background(), `SELECT sequence_key, payload->>'billing_period', (payload->>'due_at')::timestamptz, payload->>'amount_minor', payload->>'currency'
		FROM events WHERE event_type = 'billing.due.v1' ORDER BY partition, position`)
	if err != nil {
		y.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, label, minor, currency string
		var due time.Time
		if err := rows.Scan(&id, &label, &due, &minor, &currency); err != nil {
			y.t.Fatal(err)
		}
		dues[id] = append(dues[id], fmt.Sprint(label, " ", due.UTC().Format(time.RFC3339), " ", minor, " ", currency))
	}
	taken := 0
	for _, m := range y.stripe.Ledger() {
		if id := m.Metadata["customer_id"]; m.Status == "succeeded" {
			taken++
			charges[id] = append(charges[id], fmt.Sprint(m.Metadata["billing_period"], " ", m.Amount, " ", m.Currency))
		}
	}
	bills, void, differences := 0, 0, 0
	for _, id := range y.ids {
		var owed, paid []string
		for _, b := range y.model.customers[id].bills {
			bills++
			owed = append(owed, fmt.Sprint(b.label(), " ", b.due.UTC().Format(time.RFC3339), " ", b.minor, " ", b.currency))
			if b.void {
				void++
				continue
			}
			if !b.paid {
				y.t.Errorf("%s owes %s in the end", id, b.label())
			}
			paid = append(paid, fmt.Sprint(b.label(), " ", b.minor, " ", b.currency))
		}
		slices.Sort(paid)
		slices.Sort(charges[id])
		if !slices.Equal(owed, dues[id]) || !slices.Equal(paid, charges[id]) {
			if differences++; differences <= 5 {
				y.t.Errorf("%s\ndue were    %v\nwant        %v\ncharged are %v\nwant        %v\n%+v", id, dues[id], owed, charges[id], paid, *y.model.customers[id].sub)
			}
		}
	}
	y.t.Logf("year: customers=%d changes=%d bills=%d void=%d charges=%d differences=%d", len(y.ids), y.changes, bills, void, taken, differences)
	if bills < 5*len(y.ids) || void == 0 || differences > 0 {
		y.t.Errorf("%d bills, %d of them void, %d differences", bills, void, differences)
	}
}
