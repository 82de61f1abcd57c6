package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// follow reads the feed behind an id until it ends or enough says so, and gives
// each event's id and data. It returns the last id.
func (r *replica) follow(last string, took func(data string) (enough bool)) string {
	ctx, hangUp := context.WithTimeout(r.t.Context(), time.Minute)
	defer hangUp()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/v1/events/stream", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return last // nobody is there yet, or any more
	}
	defer res.Body.Close()
	id, data := "", ""
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "id: "):
			id = strings.TrimPrefix(line, "id: ")
		case strings.HasPrefix(line, "data: "):
			data = strings.TrimPrefix(line, "data: ")
		case line == "" && id != "":
			if last = id; data != "" && took(data) {
				return last
			}
			id, data = "", ""
		}
	}
	return last
}

// TestFeedOverRestarts follows the log while customers are charged and the
// service is killed again and again: every fact comes once.
func TestFeedOverRestarts(t *testing.T) {
	const lives, crowd = 4, 5
	h := newHouse(t)
	seen, last := map[string]int{}, ""
	take := func(want int) func(string) bool {
		return func(data string) bool {
			seen[data]++
			return len(seen) >= want
		}
	}
	for life := range lives {
		p := h.spawn(time.Second)
		for c := range crowd {
			id := fmt.Sprintf("c%dx%d", life, c)
			p.register(id)
			p.begin(id)
		}
		// Somewhere on the way the service dies.
		last = p.follow(last, take(len(seen)+2*crowd+life))
		p.signal(syscall.SIGKILL)
		p.exited(10 * time.Second)
	}
	r := h.start(nil)
	for life := range lives {
		for c := range crowd {
			r.paid(fmt.Sprintf("c%dx%d", life, c))
		}
	}
	facts := r.count(`SELECT count(*) FROM events`)
	last = r.follow(last, take(facts))
	for data, n := range seen {
		if n != 1 {
			t.Errorf("this came %d times: %s", n, data)
		}
	}
	if len(seen) != facts {
		t.Errorf("%d facts came, the log has %d", len(seen), facts)
	}
	if n := strings.Count(last, " "); n > 0 || len(last) > 300 {
		t.Errorf("the cursor is %q", last)
	}
}

// TestFeedHearsOfOtherReplicas follows the log at one replica while another one
// records: news comes by its notifications, not only by looking once a second.
func TestFeedHearsOfOtherReplicas(t *testing.T) {
	const news = 10
	h := newHouse(t)
	here, there := h.start(nil), h.start(nil)
	there.register("first")
	n := 0
	var begun time.Time
	here.follow("", func(data string) bool {
		if n == 0 {
			begun = time.Now()
		}
		if n++; n <= news {
			there.register(fmt.Sprint("next", n)) // only then: each waits for the one before
		}
		return n > news
	})
	if took := time.Since(begun); n != news+1 || took > news*time.Second/3 { // looking alone takes half a second each
		t.Errorf("%d pieces of news came one by one in %s", n-1, took)
	}
}
