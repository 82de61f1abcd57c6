package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/eventstore/tracking"
)

// TestC124_RedriveOfSomethingSettled: a bill's due is set aside, and the bill is
// charged by hand meanwhile. Handling the letter again, by two operators at
// once, leads to no call: it closes as already billed.
func TestC124_RedriveOfSomethingSettled(t *testing.T) {
	h := newHouse(t)
	var app *App
	r := h.startApp(twoTokens(t), func(a *App) { app = a })
	r.token = "operator"
	if _, err := app.pool.Exec(t.Context(), `INSERT INTO sagas (saga, id, state, step, version, last_position) VALUES ('billing', 'acme/2026-11', '"spoiled"', 'due', 1, 0)`); err != nil {
		t.Fatal(err)
	}
	r.subscribe("acme", "bolt")
	parked := func() []tracking.Letter {
		letters, err := tracking.Letters(t.Context(), app.pool, tracking.LetterFilter{Processor: "billing"})
		if err != nil {
			t.Fatal(err)
		}
		return letters
	}
	awaitFor(t, time.Minute, "acme's due is set aside", func() bool { return len(parked()) > 0 })
	await(t, "others go on", func() bool { return len(h.charges("bolt")) == 1 })

	const body = `{"customer_id":"acme","billing_period":"2026-11","amount_minor":1000,"currency":"usd"}`
	if status, text := r.send("caller", http.MethodPost, "/v1/commands/charge-billing?wait=20s", body); status != http.StatusOK {
		t.Fatalf("charge by hand: %d %s", status, text)
	}
	if n := len(h.charges("acme")); n != 1 {
		t.Fatalf("%d charges by hand", n)
	}
	if _, err := app.pool.Exec(t.Context(), `DELETE FROM sagas WHERE id = 'acme/2026-11'`); err != nil {
		t.Fatal(err)
	}
	first, posts := parked()[0].Place, h.posts()

	var operators sync.WaitGroup
	var handled, void [2]int
	for i := range 2 {
		operators.Go(func() {
			done, err := app.runtime.Retry(t.Context(), "billing", "acme", fmt.Sprint("operator-", i))
			if err != nil && done.Handled > 0 {
				t.Errorf("operator %d: %+v, %v", i, done, err)
			}
			handled[i], void[i] = done.Handled, done.Void
		})
	}
	operators.Wait()
	waiting := parked()
	if handled[0]+handled[1] < 1 || void[0]+void[1] != 1 || len(waiting) != 0 {
		t.Errorf("handled %v, with nothing left to do %v, waiting %v", handled, void, waiting)
	}
	path := fmt.Sprintf("/v1/dead-letters/billing/%s", first)
	await(t, "the saga is where its bill is", func() bool { return strings.Contains(r.document("caller", path), `"step":"paid"`) })
	story := r.document("caller", path)
	for _, want := range []string{`"status":"retried"`, `"note":"already billed"`, `"outcome":"parked"`, `"outcome":"retried","actor":"operator-`, `"type":"billing.due.v1"`} {
		if !strings.Contains(story, want) {
			t.Errorf("the letter does not tell %s: %s", want, story)
		}
	}
	if len(h.charges("acme")) != 1 || h.posts() != posts {
		t.Errorf("the letter led to a call: %d POSTs after %d", h.posts(), posts)
	}
	for path, want := range map[string]int{
		"/v1/dead-letters/billing/1-999999": http.StatusNotFound, "/v1/dead-letters/billing/x": http.StatusBadRequest,
	} {
		if status, text := r.send("caller", http.MethodGet, path, ""); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}
