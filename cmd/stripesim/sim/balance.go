package sim

import "strings"

// getBalanceTransaction shows what a charge or a refund did to the balance. The
// transaction is nothing of its own: its id is its source's, under another
// prefix.
func getBalanceTransaction(t *tx) response {
	suffix, ok := strings.CutPrefix(t.c.object, "txn_")
	if ch, found := t.s.charges.get("ch_" + suffix); ok && found && ch.Captured {
		return showBalance(t.c.object, "charge", ch.ID, ch.Description, ch.Currency, ch.Taken, ch.Made)
	}
	if r, found := t.s.refunds.get("re_" + suffix); ok && found {
		return showBalance(t.c.object, "refund", r.ID, "REFUND FOR CHARGE", r.Currency, -r.Amount, r.Made)
	}
	if back, failed := strings.CutPrefix(suffix, "f"); ok && failed {
		if r, found := t.s.refunds.get("re_" + back); found && r.state() == "failed" {
			return showBalance(t.c.object, "refund_failure", r.ID, "REFUND FAILURE", r.Currency, r.Amount, r.Made)
		}
	}
	return missing("balance transaction", "id", t.c.object).response()
}

func showBalance(id, kind, source, description, currency string, amount, made int64) response {
	o := make(out, 0, 500)
	o.lit(`{"id":`).str(id)
	o.lit(`,"object":"balance_transaction","amount":`).num(amount)
	o.lit(`,"available_on":`).num(made)
	o.lit(`,"created":`).num(made)
	o.lit(`,"currency":`).str(currency)
	o.lit(`,"description":`).strOrNull(description)
	o.lit(`,"exchange_rate":null,"fee":0,"fee_details":[],"net":`).num(amount)
	o.lit(`,"reporting_category":`).str(kind)
	o.lit(`,"source":`).str(source)
	o.lit(`,"status":"available","type":`).str(kind).lit(`}`)
	return response{status: 200, body: o}
}
