package stripegateway

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76/webhook"
)

func TestVerifySignature(t *testing.T) {
	t.Parallel()
	payload, err := os.ReadFile("testdata/news/payment_intent_succeeded_clover.json")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1793534400, 0)
	sign := func(at time.Time, secret string) string {
		return hex.EncodeToString(webhook.ComputeSignature(at, payload, secret))
	}
	header := func(at time.Time, signatures ...string) string {
		h := fmt.Sprintf("t=%d", at.Unix())
		for _, s := range signatures {
			h += ",v1=" + s
		}
		return h
	}
	const one, two = "whsec_one", "whsec_two"
	good := sign(now, one)
	for _, c := range []struct {
		name    string
		header  string
		secrets []string
		want    error
	}{
		{"signed", header(now, good), []string{one}, nil},
		{"signed with the second secret", header(now, sign(now, two)), []string{one, two}, nil},
		{"signed with both while rolling", header(now, sign(now, two), good), []string{one}, nil},
		{"with other schemes", header(now, good) + ",v0=00ff,v2=x", []string{one}, nil},
		{"with spaces", fmt.Sprintf("t=%d, v1=%s", now.Unix(), good), []string{one}, nil},
		{"with a broken signature beside it", header(now, "no-hex", good), []string{one}, nil},
		{"300 s ago", header(now.Add(-300*time.Second), sign(now.Add(-300*time.Second), one)), []string{one}, nil},
		{"301 s ago", header(now.Add(-301*time.Second), sign(now.Add(-301*time.Second), one)), []string{one}, ErrSignatureExpired},
		{"300 s ahead", header(now.Add(300*time.Second), sign(now.Add(300*time.Second), one)), []string{one}, nil},
		{"301 s ahead", header(now.Add(301*time.Second), sign(now.Add(301*time.Second), one)), []string{one}, ErrSignatureExpired},
		{"an old signature with a new time", header(now, sign(now.Add(-time.Hour), one)), []string{one}, ErrSignature},
		{"another secret", header(now, good), []string{two}, ErrSignature},
		{"half a signature", header(now, good[:32]), []string{one}, ErrSignature},
		{"no v1", header(now), []string{one}, ErrSignature},
		{"v0 alone", header(now) + ",v0=" + good, []string{one}, ErrSignature},
		{"no header", "", []string{one}, ErrNotSigned},
		{"no time", "v1=" + good, []string{one}, ErrSignatureHeader},
		{"two times", header(now, good) + ",t=1", []string{one}, ErrSignatureHeader},
		{"a time of words", "t=now,v1=" + good, []string{one}, ErrSignatureHeader},
		{"nonsense", "nonsense", []string{one}, ErrSignatureHeader},
		{"no secret", header(now, good), nil, ErrNoWebhookSecret},
		{"a blank secret", header(now, sign(now, "")), []string{"", " "}, ErrNoWebhookSecret},
	} {
		if err := VerifySignature(payload, c.header, c.secrets, now); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	// The raw body counts: one byte more is another body, equal JSON or not.
	if err := VerifySignature(append(payload, ' '), header(now, good), []string{one}, now); !errors.Is(err, ErrSignature) {
		t.Errorf("another body: %v", err)
	}
}
