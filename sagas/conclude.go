package sagas

import (
	"github.com/billonce/billonce/domain"
)

// Outcomes that the collector itself concludes.

func unknown(reason string, seen domain.Outcome) domain.Outcome {
	return domain.Outcome{Class: domain.Unknown, Reason: reason, Evidence: seen.Evidence, QuietSeconds: seen.QuietSeconds, RetryAfterSeconds: seen.RetryAfterSeconds}
}

func notSent(reason string, seen domain.Outcome) domain.Outcome {
	return domain.Outcome{Class: domain.RetrySameKey, Code: seen.Code, Reason: reason, Evidence: seen.Evidence, RetryAfterSeconds: seen.RetryAfterSeconds}
}

func missing(j *job) domain.Outcome {
	return domain.Outcome{Class: domain.NeedsReview, IntentID: j.r.intentID,
		Reason: "Stripe does not know the committed intent: another account, or a restored one", Evidence: "404 for " + j.r.intentID}
}

// pastWindow is what is left to a person: what was sent is not to be found, and
// its key may be forgotten, so that sending it again might take the bill twice.
func pastWindow(j *job, seen domain.Outcome) domain.Outcome {
	key := domain.ChargeKey(j.r.customer, j.r.period, 1)
	return domain.Outcome{Class: domain.NeedsReview, Evidence: seen.Evidence,
		Reason: "the charge was sent, is not listed, and its key may be forgotten: sending it again could take the bill twice; " +
			"reconcile, and search Stripe's dashboard for the metadata billing_key " + string(key)}
}

// codeCreate500 marks a create that Stripe answered with a 500, which it stores.
const codeCreate500 = "create_500"

// uncreated is what a failed create means: whatever became of it, an intent
// that is not confirmed has taken nothing.
func uncreated(o domain.Outcome) domain.Outcome {
	if o.Class != domain.Unknown {
		return o
	}
	stored := o.QuietSeconds >= int(storedQuiet.Seconds())
	o = notSent("the create was not answered; an unconfirmed intent takes no money", o)
	if stored {
		o.Code = codeCreate500
	}
	return o
}
