package sim

import (
	"bytes"
	"container/heap"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// post sends what is due until the stand-in stops. It is the one goroutine that
// looks at the clock by itself: what falls due while nobody asks happens too.
func (s *Sim) post() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		s.mu.Lock()
		now := s.clock.now()
		s.settle(now)
		s.sendDue(ctx, now)
		pause := s.untilNext(now)
		s.mu.Unlock()
		timer := time.NewTimer(pause)
		select {
		case <-s.bell:
		case <-timer.C:
		case <-s.stopping:
			timer.Stop()
			return
		case <-s.failed:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// sendDue starts an attempt of each delivery whose time has come. mu is held.
func (s *Sim) sendDue(ctx context.Context, now time.Time) {
	h := &s.hooks
	for h.url != "" && h.busy < postsAtOnce && len(h.waiting) > 0 && h.waiting[0].due <= now.UnixNano() {
		d := heap.Pop(&h.waiting).(*delivery)
		d.state = deliverySending
		d.attempts++
		h.busy++
		body := make(out, 0, 2200)
		d.event.render(&body, d.telling)
		secrets := h.secrets
		if d.badSignature {
			secrets = []string{"whsec_of_somebody_else"}
		}
		// Signatures carry real time, whatever the stand-in's clock says: that is
		// what a receiver holds them against.
		signature := sign(time.Now().Add(-d.age), body, secrets)
		d.badSignature, d.age = false, 0
		to, client, patience, world := h.url, h.client, s.settings.WebhookTimeout, s.world
		s.posting.Go(func() {
			s.syncTo(d.written) // a webhook tells of nothing that a restart could forget
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			status, err := attempt(ctx, client, to, body, signature)
			s.tried(d, world, status, err)
		})
	}
}

// untilNext is how long nothing falls due, in real time: the clock ticks at that
// pace, and whoever turns it rings the bell.
func (s *Sim) untilNext(now time.Time) time.Duration {
	pause := time.Hour
	if len(s.errands) > 0 {
		pause = min(pause, time.Duration(s.errands[0].due-now.UnixNano()))
	}
	if h := &s.hooks; h.url != "" && h.busy < postsAtOnce && len(h.waiting) > 0 {
		pause = min(pause, time.Duration(h.waiting[0].due-now.UnixNano()))
	}
	return max(pause, 0)
}

// attempt posts once. Only a 2xx in good time is a success.
func attempt(ctx context.Context, client *http.Client, to string, body []byte, signature string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	r.Header.Set("User-Agent", "Stripe/1.0 (+https://stripe.com/docs/webhooks)")
	r.Header.Set("Stripe-Signature", signature)
	resp, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)); err != nil {
		return resp.StatusCode, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return resp.StatusCode, fmt.Errorf("the endpoint answered %d", resp.StatusCode)
	}
	return resp.StatusCode, nil
}

// sign is the Stripe-Signature header: a time, and one v1 for each secret
// (https://docs.stripe.com/webhooks#verify-manually).
func sign(now time.Time, body []byte, secrets []string) string {
	stamp := strconv.FormatInt(now.Unix(), 10)
	var header strings.Builder
	header.WriteString("t=" + stamp)
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(stamp + "."))
		mac.Write(body)
		header.WriteString(",v1=" + hex.EncodeToString(mac.Sum(nil)))
	}
	return header.String()
}

// tried notes the outcome of an attempt and settles when the next one is, if any.
func (s *Sim) tried(d *delivery, world, status int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake()
	s.hooks.busy--
	d.firstTried()
	if world != s.world {
		return
	}
	now := s.clock.now()
	d.status, d.at, d.fault = status, now.UnixNano(), ""
	if err == nil {
		d.state = deliveryDelivered
	} else {
		d.fault = err.Error()
		wait := s.settings.WebhookRetry * backoff[min(d.attempts, len(backoff))-1]
		d.state, d.due = deliveryWaiting, now.Add(wait).UnixNano()
		if d.due-d.began > int64(giveUpAfter) {
			d.state = deliveryFailed
		} else {
			heap.Push(&s.hooks.waiting, d)
		}
	}
	switch {
	case d.state == deliveryDelivered && (d.event.Owed || d.event.Missed):
		s.note(d.event, false)
	case d.state == deliveryFailed && d.event.Owed && !s.owedElsewhere(d):
		s.note(d.event, true)
	}
	if next := d.next; next != nil {
		d.next, next.due = nil, now.UnixNano()
		s.start(next)
	}
}

// note remembers that nothing is owed for an event any more.
func (s *Sim) note(e *event, missed bool) {
	e.Owed, e.Missed = false, missed
	if s.journal == nil {
		return
	}
	r := &record{At: s.clock.now().UnixNano()}
	if missed {
		r.Missed = []string{e.ID}
	} else {
		r.Delivered = []string{e.ID}
	}
	s.journal.append(r, nil)
}

// owedElsewhere tells whether another delivery of the same event goes on.
func (s *Sim) owedElsewhere(d *delivery) bool {
	for _, other := range s.hooks.waiting {
		if other != d && other.event == d.event {
			return true
		}
	}
	return false
}
