package proxy

import "sync"

// sights are what reads have shown and the ledger is about to be told. A read's
// connection is free again meanwhile, but a POST that comes after a read's answer
// is judged by what the read showed.
type sights struct {
	booking sync.RWMutex  // held for reading from before an answer until what it shows is booked
	places  chan struct{} // for work that goes on behind an answer
}

// book answers, and books behind the answer; or before it returns, if much is being
// booked already.
func (s *sights) book(answer, book func()) {
	s.booking.RLock()
	behind := false
	defer func() {
		if !behind {
			s.booking.RUnlock()
		}
	}()
	answer()
	select {
	case s.places <- struct{}{}:
		behind = true
		go func() {
			defer s.booking.RUnlock()
			defer func() { <-s.places }()
			book()
		}()
	default:
		book()
	}
}

// wait waits until what was shown before is booked.
func (s *sights) wait() {
	s.booking.Lock()
	defer s.booking.Unlock()
}
