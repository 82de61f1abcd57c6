package proxy

import "sync"

// sights are what reads have shown and the ledger is being told. A read's
// connection is free again meanwhile, but a POST that comes after a read's answer
// is judged by what the read showed.
type sights struct {
	booking sync.RWMutex  // held for reading from before an answer until what it shows is booked
	places  chan struct{} // for work that goes on beside an answer
}

// book answers, and books beside the answer; or before it, if much is being booked
// already. The booking never waits for the caller: one that reads its answer
// slowly would else keep everybody's POSTs waiting.
func (s *sights) book(answer, book func()) {
	s.booking.RLock()
	select {
	case s.places <- struct{}{}:
		go func() {
			defer s.booking.RUnlock()
			defer func() { <-s.places }()
			book()
		}()
	default:
		func() {
			defer s.booking.RUnlock()
			book()
		}()
	}
	answer()
}

// wait waits until what was shown before is booked.
func (s *sights) wait() {
	s.booking.Lock()
	defer s.booking.Unlock()
}
