package commandstest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

// purse is a state that can be made to break its promises.
type purse struct{ coins []int }

// Evolve adds a coin. From an amount of 13 on it does what Evolve must not do:
// it writes into the slice that it shares with its receiver.
func (p purse) Evolve(e domain.Event) purse {
	c, ok := e.(domain.SubscriptionAmountChanged)
	if !ok {
		return p
	}
	n := int(c.AmountMinor)
	if n >= 13 {
		p.coins = append(p.coins, n)
		return p
	}
	return purse{append(p.coins[:len(p.coins):len(p.coins)], n)}
}

func coin(n int64) domain.Event {
	return domain.SubscriptionAmountChanged{CustomerID: "ada", AmountMinor: n}
}

type command struct {
	key    domain.Key
	what   string
	decide func(purse) ([]domain.Event, error)
}

func (c command) Name() string                           { return c.what }
func (c command) Key() domain.Key                        { return c.key }
func (command) Stream() domain.StreamID                  { return domain.CustomerID("ada").Stream() }
func (c command) Decide(p purse) ([]domain.Event, error) { return c.decide(p) }

func put(n int64) command {
	return command{key: domain.Key(fmt.Sprintf("put/%d", n)), what: "put", decide: func(purse) ([]domain.Event, error) { return []domain.Event{coin(n)}, nil }}
}

// witness is a test that remembers its failures.
type witness struct {
	testing.TB
	failures []string
}

func (*witness) Helper() {}
func (w *witness) Errorf(format string, args ...any) {
	w.failures = append(w.failures, fmt.Sprintf(format, args...))
}

func TestLawsAreChecked(t *testing.T) {
	t.Parallel()
	calls := 0
	for name, c := range map[string]struct {
		sentence func(commandstest.Fixture[purse])
		failure  string // that must be reported; empty: none
	}{
		"a decision as it should be": {func(f commandstest.Fixture[purse]) {
			f.Given(coin(1)).When(put(2)).Then(coin(2))
			f.Given().And(coin(1)).When(put(3)).Then(coin(3))
		}, ""},
		"other events than said":        {func(f commandstest.Fixture[purse]) { f.Given().When(put(2)).Then(coin(3)) }, "want"},
		"events where none were said":   {func(f commandstest.Fixture[purse]) { f.Given().When(put(2)).ThenNothing() }, "want nothing"},
		"no refusal where one was said": {func(f commandstest.Fixture[purse]) { f.Given().When(put(2)).ThenRefused(domain.ErrBillClosed) }, "want the refusal"},
		"another refusal than said": {func(f commandstest.Fixture[purse]) {
			f.Given().When(command{key: "k", decide: func(purse) ([]domain.Event, error) { return nil, domain.ErrCancelled }}).ThenRefused(domain.ErrBillClosed)
		}, "want the refusal"},
		"a refusal where nothing was said": {func(f commandstest.Fixture[purse]) {
			f.Given().When(command{key: "k", decide: func(purse) ([]domain.Event, error) { return nil, domain.ErrCancelled }}).ThenNothing()
		}, "want nothing"},
		"chance": {func(f commandstest.Fixture[purse]) {
			f.Given().When(command{key: "k", decide: func(purse) ([]domain.Event, error) {
				calls++
				return []domain.Event{coin(int64(calls))}, nil
			}})
		}, "decided twice"},
		"a state changed by the decision": {func(f commandstest.Fixture[purse]) {
			f.Given(coin(1)).When(command{key: "k", decide: func(p purse) ([]domain.Event, error) { p.coins[0]++; return nil, nil }})
		}, "changed the state"},
		"a state changed by a continuation": {func(f commandstest.Fixture[purse]) {
			f.Given(coin(13), coin(13), coin(13)).When(put(14)) // three coins lie in a slice that has room for a fourth
		}, "see each other"},
		"an error that is no refusal": {func(f commandstest.Fixture[purse]) {
			f.Given().When(command{key: "k", decide: func(purse) ([]domain.Event, error) { return nil, errors.New("oops") }})
		}, "without a code"},
		"a refusal with events": {func(f commandstest.Fixture[purse]) {
			f.Given().When(command{key: "k", decide: func(purse) ([]domain.Event, error) { return []domain.Event{coin(1)}, domain.ErrCancelled }})
		}, "all the same"},
		"a fact about somebody else": {func(f commandstest.Fixture[purse]) {
			f.Given().When(command{key: "k", decide: func(purse) ([]domain.Event, error) {
				return []domain.Event{domain.PaymentMethodChanged{CustomerID: "bob"}}, nil
			}})
		}, "decided a fact about"},
		"a long key": {func(f commandstest.Fixture[purse]) {
			c := put(2)
			c.key = domain.Key(strings.Repeat("k", 256))
			f.Given().When(c)
		}, "256 characters"},
		"one key for two commands": {func(f commandstest.Fixture[purse]) {
			f.Given().When(command{key: "k", what: "put", decide: nothing})
			f.Given().When(command{key: "k", what: "take", decide: nothing})
		}, "same key"},
		"a key by chance": {func(f commandstest.Fixture[purse]) {
			n := int64(0)
			f.Given().WhenBuilt(func() commands.Command[purse] { n++; return put(n) })
		}, "and then with key"},
	} {
		w := &witness{TB: t}
		c.sentence(commandstest.For[purse](w))
		reported := strings.Join(w.failures, "\n")
		if c.failure == "" && reported != "" || c.failure != "" && !strings.Contains(reported, c.failure) {
			t.Errorf("%s: reported %q, want %q", name, reported, c.failure)
		}
	}
}

func nothing(purse) ([]domain.Event, error) { return nil, nil }
