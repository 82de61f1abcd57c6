package proxy

import (
	"testing"
	"time"
)

// What a read shows is booked whether or not its caller takes the answer, so that
// one who reads slowly keeps nobody's POST waiting; with no place left it is
// booked first.
func TestSlowReadersKeepNoPostWaiting(t *testing.T) {
	t.Parallel()
	for name, places := range map[string]int{"beside the answer": 1, "before it": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sights{places: make(chan struct{}, places)}
			taken, booked, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(answered)
				s.book(func() { <-taken }, func() { close(booked) })
			}()
			waited := make(chan struct{})
			go func() {
				defer close(waited)
				<-booked
				s.wait()
			}()
			select {
			case <-waited:
			case <-time.After(30 * time.Second):
				t.Error("a POST waits for somebody who does not read")
			}
			select {
			case <-answered:
				t.Error("the answer was not awaited")
			default:
			}
			close(taken)
			<-answered
		})
	}
}
