package sim

// render shows the intent as API version 2023-10-16 does.
func (p *intent) render(o *out, x expansion) {
	o.lit(`{"id":`).str(p.ID)
	o.lit(`,"object":"payment_intent","amount":`).num(p.Amount)
	o.lit(`,"amount_capturable":`).num(p.Capturable)
	o.lit(`,"amount_details":{"tip":{}},"amount_received":`).num(p.Received)
	o.lit(`,"application":null,"application_fee_amount":null,"automatic_payment_methods":`)
	if p.automatic() {
		redirects := p.AllowRedirects
		if redirects == "" {
			redirects = "always"
		}
		o.lit(`{"allow_redirects":`).str(redirects).lit(`,"enabled":true}`)
	} else {
		o.lit(`null`)
	}
	o.lit(`,"canceled_at":`).numOrNull(p.CanceledAt)
	o.lit(`,"cancellation_reason":`).strOrNull(p.CancelReason)
	if p.Manual {
		o.lit(`,"capture_method":"manual"`)
	} else {
		o.lit(`,"capture_method":"automatic"`)
	}
	o.lit(`,"client_secret":`).str(p.Secret)
	o.lit(`,"confirmation_method":"automatic","created":`).num(p.Made)
	o.lit(`,"currency":`).str(p.Currency)
	o.lit(`,"customer":`)
	x.customerOrID(o, p.Customer)
	o.lit(`,"description":`).strOrNull(p.Description)
	o.lit(`,"invoice":null,"last_payment_error":`)
	p.LastError.render(o)
	o.lit(`,"latest_charge":`)
	x.chargeOrID(o, p.LatestCharge, x.latestCharge)
	o.lit(`,"livemode":false,"metadata":`).metadata(p.Metadata)
	o.lit(`,"next_action":`)
	if p.Status == needsAction {
		o.lit(`{"type":"use_stripe_sdk","use_stripe_sdk":{"type":"three_d_secure_redirect","stripe_js":"","source":`).str("src_" + p.ID[len("pi_"):]).lit(`}}`)
	} else {
		o.lit(`null`)
	}
	o.lit(`,"on_behalf_of":null,"payment_method":`)
	x.methodOrID(o, p.Method)
	o.lit(`,"payment_method_configuration_details":null,"payment_method_options":{"card":{"installments":null,"mandate_options":null,"network":null,"request_three_d_secure":"automatic"}},"payment_method_types":`)
	if p.automatic() {
		o.lit(`["card"]`)
	} else {
		o.strings(p.MethodTypes)
	}
	o.lit(`,"processing":`)
	if p.Status == inProcessing {
		o.lit(`{"card":{"customer_notification":null},"type":"card"}`)
	} else {
		o.lit(`null`)
	}
	o.lit(`,"receipt_email":`).strOrNull(p.ReceiptEmail)
	o.lit(`,"review":null,"setup_future_usage":`).strOrNull(p.SetupFutureUsage)
	o.lit(`,"shipping":null,"source":null,"statement_descriptor":`).strOrNull(p.StatementDescriptor)
	o.lit(`,"statement_descriptor_suffix":`).strOrNull(p.StatementSuffix)
	o.lit(`,"status":`).str(p.Status)
	o.lit(`,"transfer_data":null,"transfer_group":`).strOrNull(p.TransferGroup)
	o.lit(`}`)
}

func (f *failure) render(o *out) {
	if f == nil {
		o.lit(`null`)
		return
	}
	o.lit(`{`)
	if f.Charge != "" {
		o.lit(`"charge":`).str(f.Charge).lit(`,`)
	}
	o.lit(`"code":`).str(f.Code)
	if f.DeclineCode != "" {
		o.lit(`,"decline_code":`).str(f.DeclineCode)
	}
	o.lit(`,"doc_url":`).str("https://stripe.com/docs/error-codes/" + dashes(f.Code))
	o.lit(`,"message":`).str(f.Message)
	if f.Method != nil {
		o.lit(`,"payment_method":`)
		f.Method.render(o)
	}
	o.lit(`,"type":`).str(f.Kind).lit(`}`)
}

// render shows the charge as API version 2023-10-16 does.
func (c *charge) render(o *out, x expansion) {
	failed := c.Status == "failed"
	o.lit(`{"id":`).str(c.ID)
	o.lit(`,"object":"charge","amount":`).num(c.Amount)
	o.lit(`,"amount_captured":`).num(c.Taken)
	o.lit(`,"amount_refunded":`).num(c.Refunded)
	o.lit(`,"application":null,"application_fee":null,"application_fee_amount":null,"balance_transaction":`)
	if c.Captured {
		o.str("txn_" + c.ID[len("ch_"):])
	} else {
		o.lit(`null`)
	}
	o.lit(`,"billing_details":{"address":{"city":null,"country":null,"line1":null,"line2":null,"postal_code":null,"state":null},"email":null,"name":null,"phone":null},"calculated_statement_descriptor":`).strOrNull(c.StatementDescriptor)
	o.lit(`,"captured":`).boolean(c.Captured)
	o.lit(`,"created":`).num(c.Made)
	o.lit(`,"currency":`).str(c.Currency)
	o.lit(`,"customer":`)
	x.customerOrID(o, c.Customer)
	o.lit(`,"description":`).strOrNull(c.Description)
	o.lit(`,"destination":null,"dispute":`).strOrNull(c.Dispute)
	o.lit(`,"disputed":`).boolean(c.Dispute != "")
	o.lit(`,"failure_balance_transaction":null,"failure_code":`).strOrNull(c.FailureCode)
	o.lit(`,"failure_message":`).strOrNull(c.FailureMessage)
	o.lit(`,"fraud_details":{},"invoice":null,"livemode":false,"metadata":`).metadata(c.Metadata)
	o.lit(`,"on_behalf_of":null,"outcome":`)
	switch {
	case failed:
		reason := c.DeclineCode
		if reason == "" {
			reason = c.FailureCode
		}
		o.lit(`{"network_status":"declined_by_network","reason":`).str(reason).lit(`,"risk_level":"normal","seller_message":"The bank did not return any further details with this decline.","type":"issuer_declined"}`)
	default:
		o.lit(`{"network_status":"approved_by_network","reason":null,"risk_level":"normal","seller_message":"Payment complete.","type":"authorized"}`)
	}
	o.lit(`,"paid":`).boolean(c.Status == succeeded)
	o.lit(`,"payment_intent":`)
	x.intentOrID(o, c.Intent, x.paymentIntent)
	o.lit(`,"payment_method":`).strOrNull(c.Method)
	o.lit(`,"payment_method_details":{"card":`)
	brand := c.Brand
	if brand == "" {
		brand = "visa"
	}
	renderCard(o, brand)
	o.lit(`,"type":"card"},"receipt_email":`).strOrNull(c.ReceiptEmail)
	o.lit(`,"receipt_number":null,"receipt_url":null,"refunded":`).boolean(c.Refunded > 0 && c.Refunded == c.Amount)
	o.lit(`,"review":null,"shipping":null,"source":null,"source_transfer":null,"statement_descriptor":`).strOrNull(c.StatementDescriptor)
	o.lit(`,"statement_descriptor_suffix":`).strOrNull(c.StatementSuffix)
	o.lit(`,"status":`).str(c.Status)
	o.lit(`,"transfer_data":null,"transfer_group":`).strOrNull(c.TransferGroup)
	o.lit(`}`)
}

// chargeOrID shows a charge's id or, where wanted, the charge.
func (x expansion) chargeOrID(o *out, id string, whole bool) {
	if whole {
		if ch, ok := x.s.charges.get(id); ok {
			ch.render(o, expansion{})
			return
		}
	}
	o.strOrNull(id)
}

func (x expansion) intentOrID(o *out, id string, whole bool) {
	if whole {
		if p, ok := x.s.intents.get(id); ok {
			p.render(o, expansion{})
			return
		}
	}
	o.strOrNull(id)
}

func (x expansion) customerOrID(o *out, id string) {
	if x.customer && id != "" {
		t := tx{s: x.s}
		if cu, ok := t.findCustomer(id); ok {
			cu.render(o)
			return
		}
	}
	o.strOrNull(id)
}

func (x expansion) methodOrID(o *out, id string) {
	if x.paymentMethod && id != "" {
		t := tx{s: x.s}
		if m, _, e := t.findMethod(id, "payment_method"); e == nil {
			m.render(o)
			return
		}
	}
	o.strOrNull(id)
}
