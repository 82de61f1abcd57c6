package cli

import (
	"net/http"
	"strings"
	"testing"
)

func TestAdopt(t *testing.T) {
	got := serve(t, http.StatusOK, `{"fits":true,"name":"production","stripe_account":"acct_1","system_identifier":"77","timeline":2}`)
	ran := billingctl(t, "", "adopt", "--reason", "restored")
	if ran.code != exitOK || ran.out != "adopted: environment production, Stripe account acct_1, server 77, timeline 2; bills are collected from now on\n" {
		t.Errorf("%+v", ran)
	}
	if got.path != "/v1/environment/adopt" || got.body != `{"reason":"restored"}` || got.auth != "Bearer secret" {
		t.Errorf("the service was sent %+v", got)
	}
	serve(t, http.StatusConflict, `{"status":409,"code":"look_not_complete","detail":"adopt once it is"}`)
	if ran := billingctl(t, "", "adopt", "--reason", "restored"); ran.code != exitFailed || !strings.Contains(ran.err, "look_not_complete") {
		t.Errorf("%+v", ran)
	}
	if ran := billingctl(t, "", "adopt", "--reason", "  "); ran.code != exitUsage {
		t.Errorf("a blank reason: %+v", ran)
	}
}
