package eventstore_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// The partition is part of every stored row, and of its primary key: the hash
// never changes.
func TestPartitionsAreFrozen(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int16{
		"": 5, "a": 44, "cust_123": 25, "cust_124": 44, "ada": 59, "bob": 20, "A-b_C-9": 35, "run/2026-11": 18, strings.Repeat("x", 64): 5,
	} {
		if got := eventstore.PartitionOf(key); got != want {
			t.Errorf("%q is in partition %d, want %d", key, got, want)
		}
	}
	if eventstore.Partitions != 64 {
		t.Error("the number of partitions changed")
	}
	if got, want := eventstore.PartitionOfStream("customer/cust_123"), eventstore.PartitionOf("cust_123"); got != want {
		t.Errorf("the stream is in %d, its customer in %d", got, want)
	}
}

func TestPartitionsAreUsedEvenly(t *testing.T) {
	t.Parallel()
	var used [eventstore.Partitions]int
	for i := range 64_000 {
		used[eventstore.PartitionOf(fmt.Sprintf("cust_%d", i))]++
	}
	for p, n := range used {
		if n < 700 || n > 1300 {
			t.Errorf("partition %d has %d of 64,000 customers", p, n)
		}
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]eventstore.Place{
		"17-40213": {Partition: 17, Position: 40213}, "0-1": {Partition: 0, Position: 1}, "63-9223372036854775807": {Partition: 63, Position: 9223372036854775807},
	} {
		got, err := eventstore.ParsePlace(s)
		if err != nil || got != want || got.String() != s {
			t.Errorf("%s is %+v, spelled %s, %v", s, got, got, err)
		}
	}
	for _, s := range []string{
		"", "17", "-", "17-", "-1", "17-0", "64-1", "256-1", "-1-1", "17--1", "17-1-1", "017-1", "17-01", "+17-1", "17-+1", " 17-1", "17-1 ", "17-1\n", "17_1", "1e1-1", "0x1-1", "a-1",
		"17-9223372036854775808", "17-18446744073709551616", "１７-1",
	} {
		p, err := eventstore.ParsePlace(s)
		if e, ok := errors.AsType[*domain.Error](err); !ok || e.Kind != domain.Invalid || e.Fields[0].Field != "after_position" || p != (eventstore.Place{}) {
			t.Errorf("%q is %+v, %v", s, p, err)
		}
	}
	if s := (eventstore.Place{}).String(); s != "" {
		t.Errorf("no place is spelled %q", s)
	}
	rapid.Check(t, func(t *rapid.T) {
		p := eventstore.Place{Partition: rapid.Int16Range(0, 63).Draw(t, "partition"), Position: rapid.Int64Range(0, 1<<62).Draw(t, "position")}
		if p.Position == 0 {
			p.Partition = 0
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back eventstore.Place
		if err := json.Unmarshal(text, &back); err != nil || back != p {
			t.Fatalf("%+v is written %s and read %+v, %v", p, text, back, err)
		}
	})
	var p eventstore.Place
	if err := json.Unmarshal([]byte(`"64-1"`), &p); err == nil {
		t.Error("a place that is none was read")
	}
}
