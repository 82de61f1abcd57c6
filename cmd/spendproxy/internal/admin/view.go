package admin

import (
	"slices"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// keyView is a vault key in JSON. Amounts are minor units, times UTC.
type keyView struct {
	ID          string        `json:"id"`
	Label       string        `json:"label"`
	Environment string        `json:"environment"`
	Run         string        `json:"run"`
	Rules       []policy.Rule `json:"rules"`
	Mode        policy.Mode   `json:"mode"`
	Window      policy.Window `json:"window"`
	Manifest    bool          `json:"manifest"`
	ExpiresAt   *time.Time    `json:"expires_at"`
	RevokedAt   *time.Time    `json:"revoked_at"`
	Reason      string        `json:"revoked_because,omitempty"`
	CreatedAt   time.Time     `json:"created_at"`
	CreatedBy   string        `json:"created_by"`
	CountCap    int64         `json:"count_cap"`
	Caps        []capView     `json:"caps"`
	Secrets     []secretView  `json:"secrets"`
	Raises      []raiseView   `json:"raises,omitempty"`
}

type capView struct {
	Currency   domain.Currency `json:"currency"`
	Cap        int64           `json:"cap_minor"`
	Ceiling    int64           `json:"ceiling_minor"`
	Spent      int64           `json:"spent_minor"`
	Held       int64           `json:"held_minor"`
	Left       int64           `json:"left_minor"`
	Charges    int64           `json:"charges"`
	ByOperator bool            `json:"by_operator"`
}

type secretView struct {
	Last4     string     `json:"last4"`
	CreatedAt time.Time  `json:"created_at"`
	RetiresAt *time.Time `json:"retires_at"`
}

// raiseView is one change of a key, as it was written down.
type raiseView struct {
	What     string          `json:"what"` // raise, manifest, extend, rotate or revoke
	Currency domain.Currency `json:"currency,omitempty"`
	From     int64           `json:"from_minor"`
	To       int64           `json:"to_minor"`
	Until    *time.Time      `json:"until"`
	Reason   string          `json:"reason"`
	By       string          `json:"by"`
	At       time.Time       `json:"at"`
}

func viewRaise(r ledger.Raised) raiseView {
	return raiseView{r.What, r.Currency, r.From, r.To, moment(r.Until), r.Reason, r.By, r.At.UTC()}
}

func viewKey(k ledger.VaultKey, raises []ledger.Raised) keyView {
	v := keyView{
		ID: k.ID, Label: k.Label, Environment: k.Environment, Run: k.Run,
		Rules: k.Grant.Rules, Mode: k.Grant.Mode, Window: k.Grant.Window, Manifest: k.Grant.Manifest,
		ExpiresAt: moment(k.Grant.Expires), RevokedAt: moment(k.RevokedAt), Reason: k.Reason,
		CreatedAt: k.CreatedAt.UTC(), CreatedBy: k.CreatedBy, CountCap: k.CountCap, Caps: []capView{}, Secrets: []secretView{},
	}
	for _, c := range k.Caps {
		v.Caps = append(v.Caps, capView{c.Currency, c.Minor, c.Ceiling, c.Spent, c.Held,
			policy.Book{Cap: c.Minor, Held: c.Held, Spent: c.Spent}.Room(), c.Charges, c.ByOperator})
	}
	for _, s := range k.Secrets {
		v.Secrets = append(v.Secrets, secretView{s.Last4, s.CreatedAt.UTC(), moment(s.RetiresAt)})
	}
	for _, r := range raises {
		v.Raises = append(v.Raises, viewRaise(r))
	}
	return v
}

// moment is a time in UTC; null where there is none.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// registeredView says what a manifest did.
type registeredView struct {
	Received     int            `json:"received"`
	New          int            `json:"new"`
	Changed      int            `json:"changed"`
	Unchanged    int            `json:"unchanged"`
	Withdrawn    int            `json:"withdrawn"`
	RefusedCount int            `json:"refused_count"`
	Refused      []refusedLine  `json:"refused"` // the first hundred, by line
	Expected     []expectedView `json:"expected"`
}

type expectedView struct {
	Currency domain.Currency `json:"currency"`
	Bills    int64           `json:"bills"`
	Minor    int64           `json:"amount_minor"`
	Cap      int64           `json:"cap_minor"`
}

func viewRegistered(r ledger.Registered, in *lines) registeredView {
	v := registeredView{r.Received + in.refusedCount, r.New, r.Changed, r.Unchanged, r.Withdrawn, r.RefusedCount + in.refusedCount,
		append([]refusedLine{}, in.refused...), []expectedView{}}
	for _, e := range r.Refused {
		v.Refused = append(v.Refused, refusedLine{in.lineOf(e.Line), string(e.Bill.Customer), e.Bill.Period.String(), e.Code, e.Message})
	}
	slices.SortFunc(v.Refused, func(a, b refusedLine) int { return a.Line - b.Line })
	v.Refused = v.Refused[:min(len(v.Refused), refusedShown)]
	for _, e := range r.Expected {
		v.Expected = append(v.Expected, expectedView(e))
	}
	return v
}

// callView is a row of the audit.
type callView struct {
	Call           string          `json:"call"`
	At             time.Time       `json:"at"`
	Phase          string          `json:"phase"`
	VaultKey       string          `json:"vault_key"`
	Method         string          `json:"method"`
	Path           string          `json:"path"`
	Rule           policy.Rule     `json:"rule"`
	Verdict        string          `json:"verdict"`
	Code           policy.Code     `json:"code"`
	Reason         string          `json:"reason"`
	Customer       string          `json:"customer_id"`
	Period         string          `json:"billing_period"`
	Object         string          `json:"object"`
	Amount         int64           `json:"amount_minor"`
	Currency       domain.Currency `json:"currency"`
	IdempotencyKey string          `json:"idempotency_key"`
	Reservation    string          `json:"reservation"`
	Status         int             `json:"status"`
	RequestID      string          `json:"request_id"`
	LatencyMS      float64         `json:"latency_ms"`
}

func viewCall(r ledger.Recorded) callView {
	return callView{r.Call, r.At.UTC(), r.Phase, r.VaultKey, r.Method, r.Path, r.Rule, r.Verdict, r.Code, r.Reason, r.Customer, r.Period, r.Object,
		r.Amount, r.Currency, r.IdempotencyKey, r.Reservation, r.Status, r.RequestID, float64(r.Latency.Microseconds()) / 1000}
}

// sumView is what was charged in one currency, in minor units, and how often.
type sumView struct {
	Currency      domain.Currency `json:"currency"`
	SettledMinor  int64           `json:"settled_minor"`
	Settled       int64           `json:"settled"`
	HeldMinor     int64           `json:"held_minor"`
	Held          int64           `json:"held"`
	RefundedMinor int64           `json:"refunded_minor"`
	Refunded      int64           `json:"refunded"`
	RefundsMinor  int64           `json:"refunds_held_minor"`
	RefundsHeld   int64           `json:"refunds_held"`
}
