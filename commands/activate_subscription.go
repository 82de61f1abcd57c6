package commands

import "github.com/billonce/billonce/domain"

// ActivateSubscription starts what a customer pays for.
type ActivateSubscription struct {
	key        domain.Key
	CustomerID domain.CustomerID `json:"customer_id"`
	Amount     domain.Money      `json:"amount"`
	Cadence    domain.Cadence    `json:"cadence"`
	AnchorDay  int               `json:"anchor_day"`
	TimeZone   string            `json:"time_zone"`
	StartsOn   domain.Date       `json:"starts_on"`
}

// NewActivateSubscription builds the command; its key is the customer and the
// start date.
func NewActivateSubscription(c domain.CustomerID, amount domain.Money, s domain.Schedule) ActivateSubscription {
	return ActivateSubscription{
		domain.KeyOf("activate-subscription", string(c), s.StartsOn.String()),
		c, amount, s.Cadence, s.AnchorDay, s.TimeZone, s.StartsOn,
	}
}

func (ActivateSubscription) Name() string              { return "activate-subscription" }
func (c ActivateSubscription) Key() domain.Key         { return c.key }
func (c ActivateSubscription) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c ActivateSubscription) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	if sub, ok := s.Subscription(); ok && sub.Status != domain.SubscriptionEnded {
		return nil, domain.ErrSubscriptionExists
	}
	// What fell due before the former subscription ended is owed, however late it
	// is declared; this is the last moment at which its terms are known.
	var events []domain.Event
	for p, _ := s.NextDue(domain.Period{}); !p.IsZero(); p, _ = s.NextDue(p.Next()) {
		events = append(events, dueOf(s, p))
	}
	// What another system has billed is not billed again: the subscription starts
	// here where that one's ended.
	startsOn := c.StartsOn
	if through := s.BilledThrough(); s.BilledBefore(domain.PeriodOf(c.Cadence, startsOn.Year, int(startsOn.Month))) {
		startsOn = through.DayAfter()
	}
	return append(events, domain.SubscriptionActivated{
		CustomerID: c.CustomerID, Money: c.Amount, Cadence: c.Cadence, AnchorDay: c.AnchorDay, TimeZone: c.TimeZone, StartsOn: startsOn,
	}), nil
}

type activateSubscriptionBody struct {
	CustomerID  string `json:"customer_id" example:"cust_123"`
	AmountMinor int64  `json:"amount_minor" doc:"Amount of each period, in minor units." example:"5000"`
	Currency    string `json:"currency" doc:"Lower-case ISO code." example:"usd"`
	Cadence     string `json:"cadence" enum:"monthly,quarterly,yearly" example:"monthly"`
	AnchorDay   int    `json:"anchor_day" doc:"Day of the month a period falls due; 29 to 31 fall on the last day of shorter months." minimum:"1" maximum:"31" example:"1"`
	TimeZone    string `json:"time_zone" doc:"IANA zone of the customer." example:"Europe/Berlin"`
	StartsOn    string `json:"starts_on" doc:"Local date; the first period billed is the first whose anchor day is on or after it." format:"date" example:"2026-11-01"`
}

func (b activateSubscriptionBody) build(Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	amount := checkMoney(&v, b.AmountMinor, b.Currency)
	cadence := check(&v, b.Cadence, domain.ParseCadence)
	zone := check(&v, b.TimeZone, domain.ParseTimeZone)
	if b.AnchorDay < 1 || b.AnchorDay > 31 {
		v.add("anchor_day", "must be 1 to 31")
	}
	startsOn := checkDate(&v, "starts_on", b.StartsOn)
	return v.request(Of(NewActivateSubscription(id, amount, domain.Schedule{Cadence: cadence, AnchorDay: b.AnchorDay, TimeZone: zone, StartsOn: startsOn})))
}
