package sim

import (
	"net/url"
	"strings"

	"golang.org/x/time/rate"
)

// route is one kind of request that the stand-in answers.
type route struct {
	name   string // method and path, with * for the id
	write  bool   // POST or DELETE: changes state under the object's lock
	money  bool   // may try to move money, so a decline can be scripted
	shapes shapes
	check  func(*call) *apiError // validation; nil: the shapes are enough
	run    func(*tx) response
	n      int64 // requests seen, under Sim.mu

	limiter *rate.Limiter // of the endpoint, under Sim.mu
}

// place is where a route hangs: method, resource, whether an id follows, and
// what comes after the id (or, as "search", instead of it).
type place struct {
	method, resource string
	id               bool
	action           string
}

// routes builds the table of a Sim, with its counters.
func routes() map[place]*route {
	intents := func(c *call) *apiError { return checkList(c, intentExpansions...) }
	charges := func(c *call) *apiError { return checkList(c, chargeExpansions...) }
	refunds := func(c *call) *apiError { return checkList(c, refundExpansions...) }
	setups := func(c *call) *apiError { return checkList(c, setupExpansions...) }
	disputes := func(c *call) *apiError { return checkList(c, disputeExpansions...) }
	customers := func(c *call) *apiError { return checkList(c) }
	searchI := func(c *call) *apiError { return checkSearch(c, intentExpansions...) }
	searchC := func(c *call) *apiError { return checkSearch(c, chargeExpansions...) }
	expand := shapes{"expand": list}
	attach := func(c *call) *apiError { return c.params.require("customer") }

	table := map[place]*route{
		{"POST", "payment_intents", false, ""}:       {shapes: createIntentShapes, check: checkCreateIntent, run: createIntent, money: true},
		{"GET", "payment_intents", false, ""}:        {shapes: listIntentShapes, check: intents, run: listIntents},
		{"GET", "payment_intents", false, "search"}:  {shapes: searchShapes, check: searchI, run: searchIntents},
		{"GET", "payment_intents", true, ""}:         {shapes: getShapes, check: checkGetIntent, run: getIntent},
		{"POST", "payment_intents", true, ""}:        {shapes: intentShapes, check: checkUpdateIntent, run: updateIntent},
		{"POST", "payment_intents", true, "confirm"}: {shapes: confirmShapes, check: checkConfirm, run: confirmIntent, money: true},
		{"POST", "payment_intents", true, "cancel"}:  {shapes: cancelShapes, check: checkCancelIntent, run: cancelIntent},
		{"POST", "payment_intents", true, "capture"}: {shapes: captureShapes, check: checkCaptureIntent, run: captureIntent},
		{"POST", "charges", false, ""}:               {shapes: createChargeShapes, check: checkCreateCharge, run: createCharge, money: true},
		{"GET", "charges", false, ""}:                {shapes: listChargeShapes, check: charges, run: listCharges},
		{"GET", "charges", false, "search"}:          {shapes: searchShapes, check: searchC, run: searchCharges},
		{"GET", "charges", true, ""}:                 {shapes: expand, check: checkGetCharge, run: getCharge},
		{"POST", "charges", true, ""}:                {shapes: updateChargeShapes, check: checkUpdateCharge, run: updateCharge},
		{"POST", "refunds", true, ""}:                {shapes: updateRefundShapes, check: checkUpdateRefund, run: updateRefund},
		{"POST", "refunds", false, ""}:               {shapes: createRefundShapes, check: checkCreateRefund, run: createRefund},
		{"GET", "refunds", false, ""}:                {shapes: listRefundShapes, check: refunds, run: listRefunds},
		{"GET", "refunds", true, ""}:                 {shapes: expand, check: checkGetRefund, run: getRefund},
		{"POST", "setup_intents", false, ""}:         {shapes: createSetupIntentShapes, check: checkCreateSetupIntent, run: createSetupIntent},
		{"GET", "setup_intents", false, ""}:          {shapes: listSetupIntentShapes, check: setups, run: listSetupIntents},
		{"GET", "setup_intents", true, ""}:           {shapes: expand, check: checkGetSetupIntent, run: getSetupIntent},
		{"POST", "setup_intents", true, "confirm"}:   {shapes: confirmSetupIntentShapes, check: checkGetSetupIntent, run: confirmSetupIntent},
		{"POST", "setup_intents", true, "cancel"}:    {shapes: cancelShapes, check: checkCancelSetupIntent, run: cancelSetupIntent},
		{"GET", "balance_transactions", true, ""}:    {shapes: shapes{}, run: getBalanceTransaction},
		{"GET", "disputes", false, ""}:               {shapes: listDisputeShapes, check: disputes, run: listDisputes},
		{"GET", "disputes", true, ""}:                {shapes: expand, check: checkGetDispute, run: getDispute},
		{"GET", "events", false, ""}:                 {shapes: listEventShapes, check: checkListEvents, run: listEvents},
		{"GET", "events", true, ""}:                  {shapes: shapes{}, run: getEvent},
		{"POST", "customers", false, ""}:             {shapes: createCustomerShapes, check: checkCreateCustomer, run: createCustomer},
		{"POST", "customers", true, ""}:              {shapes: customerShapes, check: checkCreateCustomer, run: updateCustomer},
		{"GET", "customers", false, ""}:              {shapes: listCustomerShapes, check: customers, run: listCustomers},
		{"GET", "customers", true, ""}:               {shapes: shapes{}, run: getCustomer},
		{"DELETE", "customers", true, ""}:            {shapes: shapes{}, run: deleteCustomer},
		{"GET", "payment_methods", true, ""}:         {shapes: shapes{}, run: getMethod},
		{"POST", "payment_methods", true, "attach"}:  {shapes: shapes{"customer": text}, check: attach, run: attachMethod},
		{"POST", "payment_methods", true, "detach"}:  {shapes: shapes{}, run: detachMethod},
		{"GET", "account", false, ""}:                {shapes: shapes{}, run: getAccount},
	}
	for at, r := range table {
		r.name = at.method + " /v1/" + at.resource
		if at.id {
			r.name += "/*"
		}
		if at.action != "" {
			r.name += "/" + at.action
		}
		r.write = at.method != "GET"
	}
	return table
}

// find resolves a request's method and path. path is the cleaned path: Stripe
// takes doubled slashes and a trailing one.
func (s *Sim) find(method string, u *url.URL) (r *route, object, path string) {
	path = u.EscapedPath()
	if strings.Contains(path, "//") || len(path) > 1 && strings.HasSuffix(path, "/") {
		parts := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
		path = "/" + strings.Join(parts, "/")
	}
	rest, ok := strings.CutPrefix(path, "/v1/")
	if !ok {
		return nil, "", path
	}
	at := place{method: method}
	var id string
	at.resource, rest, _ = strings.Cut(rest, "/")
	id, at.action, at.id = strings.Cut(rest, "/")
	at.id = id != ""
	if id == "search" && at.action == "" && (at.resource == "payment_intents" || at.resource == "charges") {
		at.id, at.action = false, "search"
	}
	if at.id {
		object, err := url.PathUnescape(id)
		if err != nil {
			return nil, "", path
		}
		return s.routes[at], object, path
	}
	return s.routes[at], "", path
}
