// Package imports brings customers from a file into the service.
//
// The file is NDJSON, one customer a line, or CSV with the same names in its
// first line. A row has the fields of the commands register-customer and
// activate-subscription:
//
//	{"customer_id": "cust_1", "stripe_customer_id": "cus_1", "payment_method_id": "pm_1",
//	 "amount_minor": 4900, "currency": "usd", "cadence": "monthly", "anchor_day": 1,
//	 "time_zone": "Europe/Berlin", "starts_on": "2026-12-01"}
//
// and, of a customer whom another system has billed, its history: the last
// period that it has billed, and the charges it made, as far as they are known.
//
//	"billed_through": "2026-11",
//	"charges": [{"billing_period": "2026-11", "charge_id": "ch_1", "amount_minor": 4900}]
//
// No period that begins before the end of billed_through falls due or can be
// charged here, whatever starts_on says. A charge has the row's currency unless
// it names one. In CSV the cell of charges holds the same JSON; an empty cell is
// a field that is left out.
//
// A row is checked by the commands' own rules before anything of it is sent,
// and its subscription is begun only once its customer is registered and its
// history is known: of a row that is refused, nothing of the subscription
// stays. Other rows go on.
//
// Every command is keyed by the row's own values, so the same import again
// changes nothing and answers "replayed", after an interruption too. The file is
// read as it is sent; of all rows, nothing is kept.
package imports
