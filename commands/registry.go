package commands

import (
	"iter"
	"slices"
	"time"

	"github.com/billonce/billonce/domain"
)

// Input is what a caller gives beside the command's name.
type Input struct {
	Key  domain.Key // the Idempotency-Key header; empty if there was none
	Body []byte     // a JSON object
	Now  time.Time  // business time, for commands that say when
}

// Scope is the right that a caller of a command needs, spelled as in
// BILLING_TOKENS.
type Scope string

// The scopes. Dispatch is the ordinary business, which a shop's own programs
// send. Operate is for decisions that are a person's: money that goes back or
// stays where it should not be, and bills that end, or go on, on somebody's word
// instead of Stripe's.
const (
	Dispatch Scope = "dispatch"
	Operate  Scope = "operate"
)

// Spec is a public command as HTTP, the command line and OpenAPI see it.
type Spec struct {
	Name    string
	Summary string
	Scope   Scope
	// NeedsKey: several equal commands are legitimate, so the caller must say
	// with an Idempotency-Key which one this is.
	NeedsKey bool
	// Charges: the answer also says where the bill stands.
	Charges bool
	// Body is a zero value of the body's struct; its tags describe the fields.
	Body any
	// Decode reads a body and builds the command. Errors are invalid input that
	// names the fields, or domain.ErrIdempotencyKeyNeeded.
	Decode func(Input) (Request, error)
}

// Registry lists the public commands. Adding one is adding a line.
var registry = []Spec{
	public[registerCustomerBody]("register-customer", "Make a customer known", free),
	public[importHistoryBody]("import-history", "Say through which period another system has billed", free),
	public[importChargeBody]("import-charge", "Name the charge of a period that another system has billed", free),
	public[activateSubscriptionBody]("activate-subscription", "Start a subscription", free),
	public[changeSubscriptionAmountBody]("change-subscription-amount", "Change what is owed from a period on", keyed),
	public[changeSubscriptionScheduleBody]("change-subscription-schedule", "Change anchor day or time zone from a period on", keyed),
	public[changePaymentMethodBody]("change-payment-method", "Set the payment method of later attempts", keyed),
	public[pauseSubscriptionBody]("pause-subscription", "Stop new dues and let charges wait", keyed),
	public[resumeSubscriptionBody]("resume-subscription", "End a pause", keyed),
	public[cancelSubscriptionBody]("cancel-subscription", "End a subscription, now or with its period", keyed),
	public[declareBillingDueBody]("declare-billing-due", "Declare a period due", free),
	public[chargeBillingBody]("charge-billing", "Collect a bill", charging),
	public[retryChargeBody]("retry-charge", "Make another attempt at a bill that was declined", charging),
	operated[stopDunningBody]("stop-dunning", "Let a declined bill rest", keyed),
	operated[rescheduleDunningBody]("reschedule-dunning", "Set when a declined bill is tried again", keyed),
	operated[releaseBillingBody]("release-billing", "Let a bill go on that waits for an operator or needs review", keyed),
	operated[settleBillingBody]("settle-billing", "Say that a bill was paid outside Stripe", keyed),
	operated[writeOffBillingBody]("write-off-billing", "Give a bill up", keyed),
	operated[refundChargeBody]("refund-charge", "Give money of a paid bill back", free),
	operated[acceptRefundBody]("accept-refund", "Let a refund stand that differs at Stripe from what was asked for", keyed),
	operated[dismissRefundProposalBody]("dismiss-refund-proposal", "Decide that a surplus charge's money stays", keyed),
	operated[pauseRunBody]("pause-run", "Stop the collection of a run's bills", keyed),
	operated[resumeRunBody]("resume-run", "Let a run's bills be collected again", keyed),
}

// Commands that the service sends to itself: known by name, refused by name.
var internal = []string{"close-run", "start-attempt", "commit-intent", "complete-closing", "plan-dunning", "suspect-settlement", "record-charge-outcome", "record-refund-outcome", "record-dispute", "propose-refund"}

type keyRule int

const (
	free     keyRule = iota // the key derives from the command's own fields
	keyed                   // the caller's Idempotency-Key is part of the key
	charging                // free, and answered with the bill's state
)

type builder interface{ build(Input) (Request, error) }

func public[B builder](name, summary string, rule keyRule) Spec {
	var zero B
	return Spec{
		Name: name, Summary: summary, Scope: Dispatch, NeedsKey: rule == keyed, Charges: rule == charging, Body: zero,
		Decode: func(in Input) (Request, error) {
			var body B
			if err := decode(in.Body, &body); err != nil {
				return Request{}, err
			}
			if rule == keyed && in.Key == "" {
				return Request{}, domain.ErrIdempotencyKeyNeeded
			}
			return body.build(in)
		},
	}
}

// operated is a command for operators.
func operated[B builder](name, summary string, rule keyRule) Spec {
	s := public[B](name, summary, rule)
	s.Scope = Operate
	return s
}

// All lists the public commands, in the order a reader meets them.
func All() iter.Seq[Spec] { return slices.Values(registry) }

// Lookup finds a public command. It returns domain.ErrUnknownCommand, or
// domain.ErrInternal for one that only the service sends.
func Lookup(name string) (Spec, error) {
	for _, s := range registry {
		if s.Name == name {
			return s, nil
		}
	}
	if slices.Contains(internal, name) {
		return Spec{}, domain.ErrInternal.With("%s is sent by the service itself", name)
	}
	return Spec{}, domain.ErrUnknownCommand.With("there is no command %q", name)
}
