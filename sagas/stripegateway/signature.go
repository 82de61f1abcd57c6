package stripegateway

import (
	"crypto/hmac"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76/webhook"
)

// What can be wrong with a delivery's signature.
var (
	ErrNoWebhookSecret  = errors.New("there is no webhook secret: nothing can be verified")
	ErrNotSigned        = errors.New("the delivery is not signed")
	ErrSignatureHeader  = errors.New("the Stripe-Signature header cannot be read")
	ErrSignature        = errors.New("no signature fits a secret")
	ErrSignatureExpired = errors.New("the signature is from another time")
)

// signatureTolerance is how far the time in a signature may be from now, in
// either direction. Each attempt of a delivery is signed anew, so late ones pass
// (https://docs.stripe.com/webhooks#verify-manually).
const signatureTolerance = webhook.DefaultTolerance

// VerifySignature checks the Stripe-Signature header of a delivery against the
// raw body and any of the secrets, of which there are two while one is rolled.
// Now is the real time, never business time. The library's own check is not
// used for the time, since it accepts any that is in the future.
func VerifySignature(payload []byte, header string, secrets []string, now time.Time) error {
	if header == "" {
		return ErrNotSigned
	}
	at, signatures, err := readSignature(header)
	if err != nil {
		return err
	}
	usable, fits := 0, false
	for _, secret := range secrets {
		if strings.TrimSpace(secret) == "" {
			continue // a blank secret would let everybody sign
		}
		usable++
		want := webhook.ComputeSignature(at, payload, secret)
		for _, got := range signatures {
			fits = hmac.Equal(want, got) || fits
		}
	}
	switch age := now.Sub(at); {
	case usable == 0:
		return ErrNoWebhookSecret
	case !fits:
		return ErrSignature
	case age > signatureTolerance || age < -signatureTolerance:
		return ErrSignatureExpired
	}
	return nil
}

// readSignature takes t=…,v1=…,v1=… apart. Other schemes are passed over, as
// is a v1 that is no hexadecimal number.
func readSignature(header string) (at time.Time, signatures [][]byte, err error) {
	for part := range strings.SplitSeq(header, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return at, nil, ErrSignatureHeader
		}
		switch name {
		case "t":
			seconds, err := strconv.ParseInt(value, 10, 64)
			if err != nil || seconds <= 0 || !at.IsZero() {
				return at, nil, ErrSignatureHeader
			}
			at = time.Unix(seconds, 0)
		case "v1":
			if signature, err := hex.DecodeString(value); err == nil {
				signatures = append(signatures, signature)
			}
		}
	}
	switch {
	case at.IsZero():
		return at, nil, ErrSignatureHeader
	case len(signatures) == 0:
		return at, nil, ErrSignature
	}
	return at, signatures, nil
}
