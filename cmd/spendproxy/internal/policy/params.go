package policy

import (
	"strings"
)

// shape says how a parameter may be written.
type shape uint8

const (
	scalar shape = iota + 1 // name
	list                    // name[], name[0]
	hash                    // name[key]
	span                    // name, name[gte], …
	tree                    // name[a], name[a][b], …
)

// shapes are the parameters that an operation may have.
type shapes map[string]shape

// The parameters on the list. Those that send money elsewhere (destination,
// transfer_data, on_behalf_of, application_fee_amount), take it later
// (capture_method, capture) or carry raw card data (payment_method_data) are on
// none. cancellation_reason and the like have no part in money.
var (
	readShapes = shapes{"expand": list}

	intentShapes = shapes{
		"amount": scalar, "currency": scalar, "customer": scalar, "confirm": scalar, "off_session": scalar,
		"payment_method": scalar, "payment_method_types": list, "automatic_payment_methods": tree,
		"description": scalar, "metadata": hash, "receipt_email": scalar, "return_url": scalar,
		"statement_descriptor": scalar, "statement_descriptor_suffix": scalar, "setup_future_usage": scalar,
		"error_on_requires_action": scalar, "confirmation_method": scalar, "mandate": scalar, "mandate_data": tree,
		"shipping": tree, "use_stripe_sdk": scalar, "transfer_group": scalar, "expand": list,
	}
	confirmShapes = shapes{
		"payment_method": scalar, "off_session": scalar, "return_url": scalar, "error_on_requires_action": scalar,
		"mandate": scalar, "mandate_data": tree, "receipt_email": scalar, "setup_future_usage": scalar,
		"use_stripe_sdk": scalar, "expand": list,
	}
	cancelShapes = shapes{"cancellation_reason": scalar, "expand": list}
	chargeShapes = shapes{
		"amount": scalar, "currency": scalar, "customer": scalar, "source": scalar, "description": scalar,
		"metadata": hash, "receipt_email": scalar, "statement_descriptor": scalar, "statement_descriptor_suffix": scalar,
		"shipping": tree, "transfer_group": scalar, "expand": list,
	}
	refundShapes = shapes{
		"charge": scalar, "payment_intent": scalar, "amount": scalar, "reason": scalar, "metadata": hash, "expand": list,
	}
)

func listShapes(filters ...string) shapes {
	s := shapes{"limit": scalar, "starting_after": scalar, "ending_before": scalar, "created": span, "expand": list}
	for _, f := range filters {
		s[f] = scalar
	}
	if _, ok := s["types"]; ok {
		s["types"] = list
	}
	return s
}

// allows tells whether a parameter of that name is on the list.
func (s shapes) allows(name string) bool {
	base, rest, nested := strings.Cut(name, "[")
	keys := strings.Split(strings.TrimSuffix(rest, "]"), "][")
	switch s[base] {
	case scalar:
		return !nested
	case list:
		return nested && len(keys) == 1 && digits(keys[0])
	case hash:
		return nested && len(keys) == 1 && keys[0] != ""
	case span:
		return !nested || len(keys) == 1 && (keys[0] == "gt" || keys[0] == "gte" || keys[0] == "lt" || keys[0] == "lte")
	case tree:
		return nested
	}
	return false
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) <= 3
}

// expansions are the rules that the parts of an expand need: what it shows is
// read as much as if it had been asked for.
var expansions = map[string]Rule{
	"data":                   "",
	"charge":                 ChargesRead,
	"latest_charge":          ChargesRead,
	"payment_intent":         IntentsRead,
	"customer":               CustomersRead,
	"payment_method":         MethodsRead,
	"refund":                 RefundsRead,
	"refunds":                RefundsRead,
	"default_source":         MethodsRead,
	"invoice_settings":       CustomersRead,
	"default_payment_method": MethodsRead,
}
