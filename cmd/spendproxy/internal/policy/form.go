package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/billonce/billonce/domain"
)

// Bounds of a request's parameters. The body is bounded by its reader.
const (
	maxPairs = 500
	maxName  = 200
	maxValue = 8 << 10
)

// ReadForm reads the body of a POST into the call. Each parameter stands once
// (elements of a list excepted), the ones that decide about money in one
// spelling, and numbers are digits. A refusal is a 400 or 415 and binds in
// every mode.
func ReadForm(c *Call, contentType string, body []byte) Verdict {
	if v := checkType(contentType, len(body)); !v.Allow {
		return v
	}
	pairs, v := readPairs(string(body))
	if !v.Allow {
		return v
	}
	foldBooleans(pairs)
	c.Form = pairs
	if v := c.interpret(); !v.Allow {
		return v
	}
	c.Fingerprint = c.fingerprint()
	return allowed("")
}

// ReadKey reads the Idempotency-Key of a POST, which must come exactly once, 1
// to 255 printable characters (https://docs.stripe.com/api/idempotent_requests).
func ReadKey(c *Call, headers []string) Verdict {
	if len(headers) != 1 {
		return Refuse(http.StatusBadRequest, CodeNoKey, "a POST must carry one Idempotency-Key, so that repeating it moves no money twice; it carries %d", len(headers))
	}
	key, err := domain.ParseKey(headers[0])
	if err != nil {
		return Refuse(http.StatusBadRequest, CodeNoKey, "the Idempotency-Key must be 1 to 255 printable ASCII characters without spaces at its ends")
	}
	c.Key = string(key)
	return allowed("")
}

// Encoded is the call's form as it goes on.
func (c Call) Encoded() []byte { return []byte(encode(c.Form)) }

func checkType(contentType string, size int) Verdict {
	if contentType == "" && size == 0 {
		return allowed("")
	}
	kind, params, err := mime.ParseMediaType(contentType)
	charset := strings.ToLower(params["charset"])
	if err != nil || kind != "application/x-www-form-urlencoded" || len(params) > 1 || len(params) == 1 && charset != "utf-8" {
		return Refuse(http.StatusUnsupportedMediaType, CodeRequest, "a body must be application/x-www-form-urlencoded")
	}
	return allowed("")
}

var nameShape = regexp.MustCompile(`^[a-z][a-z0-9_]*(\[[^\[\]]*\]){0,4}$`)

// readPairs decodes form-encoded text.
func readPairs(text string) ([]Pair, Verdict) {
	if text == "" {
		return nil, allowed("")
	}
	if strings.Count(text, "&") >= maxPairs {
		return nil, badRequest("there are more than %d parameters", maxPairs)
	}
	pairs := make([]Pair, 0, 8)
	seen := make(map[string]bool, 8)
	for part := range strings.SplitSeq(text, "&") {
		name, value, ok := strings.Cut(part, "=")
		name, err := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		switch {
		case !ok || err != nil || err2 != nil || !utf8.ValidString(value) || strings.ContainsRune(value, 0) || len(value) > maxValue:
			return nil, badRequest("a parameter cannot be read")
		case len(name) > maxName || !printable(name) || !nameShape.MatchString(name):
			return nil, badRequest("a parameter's name is not one of Stripe's")
		case seen[name] && !strings.HasSuffix(name, "[]"):
			return nil, badRequest("the parameter %s stands twice", name)
		}
		seen[name] = true
		pairs = append(pairs, Pair{name, value})
	}
	return pairs, allowed("")
}

// booleans are the parameters on the list that are true or false.
var booleans = []string{"confirm", "off_session", "error_on_requires_action", "use_stripe_sdk", "automatic_payment_methods[enabled]"}

// foldBooleans gives True and False, as Stripe's Python and .NET libraries of
// before 2025 write them, the one spelling in which they are judged and go on.
func foldBooleans(pairs []Pair) {
	for i, p := range pairs {
		if (p.Value == "True" || p.Value == "False") && slices.Contains(booleans, p.Name) {
			pairs[i].Value = strings.ToLower(p.Value)
		}
	}
}

func badRequest(format string, args ...any) Verdict {
	return Refuse(http.StatusBadRequest, CodeRequest, format, args...)
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// scalars decide about money: they stand without brackets.
var scalars = []string{"amount", "currency", "customer", "confirm", "charge", "payment_intent"}

// interpret reads what the parameters say.
func (c *Call) interpret() Verdict {
	var customer, period string
	for _, p := range c.Form {
		base, rest, nested := strings.Cut(p.Name, "[")
		if nested && slices.Contains(scalars, base) {
			return badRequest("%s is one value", base)
		}
		if base == "metadata" && (!nested || strings.Count(rest, "[") > 0 || !isMetadataKey(strings.TrimSuffix(rest, "]"))) {
			return badRequest("metadata has a name between one pair of brackets")
		}
		switch p.Name {
		case "amount":
			n, err := strconv.ParseInt(p.Value, 10, 64)
			if err != nil || n <= 0 || strconv.FormatInt(n, 10) != p.Value {
				return badRequest("the amount must be a positive whole number of minor units, in digits alone")
			}
			c.Amount = n
		case "currency":
			known, err := domain.ParseCurrency(p.Value)
			if err != nil {
				return badRequest("the currency must be a lower-case ISO code that Stripe charges")
			}
			c.Currency = known
		case "customer":
			c.StripeCustomer = p.Value
		case "confirm":
			if p.Value != "true" && p.Value != "false" {
				return badRequest("confirm must be true or false")
			}
			c.Confirms = p.Value == "true"
		case "charge":
			if c.Charge = ChargeID(p.Value); c.Charge == "" {
				return badRequest("charge must be the id of one")
			}
		case "payment_intent":
			if c.Intent = IntentID(p.Value); c.Intent == "" {
				return badRequest("payment_intent must be the id of one")
			}
		case "metadata[customer_id]":
			customer = p.Value
		case "metadata[billing_period]":
			period = p.Value
		}
	}
	c.Bill = billOf(customer, period)
	return c.required()
}

// required refuses what leaves open how much money a call is about.
func (c *Call) required() Verdict {
	switch c.Rule {
	case IntentsCreate, ChargesCreate:
		if c.Amount == 0 || c.Currency == "" {
			return badRequest("amount and currency are needed")
		}
	case RefundsCreate:
		if (c.Charge == "") == (c.Intent == "") {
			return badRequest("a refund names one of charge and payment_intent")
		}
	default: // the object in the path decides
		if c.Amount != 0 || c.Currency != "" || c.Confirms {
			return badRequest("amount, currency and confirm belong to a create")
		}
	}
	return allowed("")
}

// isMetadataKey tells whether s names one value of the metadata
// (https://docs.stripe.com/api/metadata).
func isMetadataKey(s string) bool {
	return s != "" && len(s) <= 40 && strings.TrimSpace(s) == s
}

// billOf reads markers; no bill if they are not one's.
func billOf(customer, period string) BillID {
	id, err := domain.ParseCustomerID(customer)
	if err != nil {
		return BillID{}
	}
	p, err := domain.ParsePeriod(period)
	if err != nil {
		return BillID{}
	}
	return BillID{Customer: id, Period: p}
}

// metadata is a marker of the call.
func (c Call) metadata(name string) string {
	for _, p := range c.Form {
		if p.Name == "metadata["+name+"]" {
			return p.Value
		}
	}
	return ""
}

// fingerprint is the identity of the request under a key: method, path and
// every parameter, whatever order they came in.
func (c Call) fingerprint() [sha256.Size]byte {
	sorted := slices.Clone(c.Form)
	slices.SortStableFunc(sorted, func(a, b Pair) int { return cmp.Compare(a.Name, b.Name) })
	buf := make([]byte, 0, 512)
	add := func(s string) {
		buf = binary.AppendUvarint(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	add(c.Method)
	add(c.Path)
	for _, p := range sorted {
		add(p.Name)
		add(p.Value)
	}
	return sha256.Sum256(buf)
}
