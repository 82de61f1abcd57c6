// Package imports brings customers from a file into the service.
//
// The file is NDJSON: one customer a line, with the fields of the commands
// register-customer and activate-subscription.
//
//	{"customer_id": "cust_1", "stripe_customer_id": "cus_1", "payment_method_id": "pm_1",
//	 "amount_minor": 4900, "currency": "usd", "cadence": "monthly", "anchor_day": 1,
//	 "time_zone": "Europe/Berlin", "starts_on": "2026-12-01"}
//
// A row is checked by the commands' own rules before anything of it is sent,
// and its subscription is begun only once its customer is registered: of a row
// that is refused, nothing of the subscription stays. Other rows go on.
//
// Both commands are keyed by the row's own values, so the same import again
// changes nothing and answers "replayed", after an interruption too.
//
// History (bills of former periods, pauses) cannot be imported in this version;
// a row with other fields than these is refused, and they are named.
package imports
