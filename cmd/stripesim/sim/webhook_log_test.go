package sim

import "testing"

// Of the deliveries that are finished the newest are remembered, and all that are
// not.
func TestDeliveriesAreBounded(t *testing.T) {
	t.Parallel()
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	const all = 5 * deliveriesMax
	for n := range all {
		if d := s.queue(&event{}, 0); n%10 != 0 {
			d.state = deliveryDelivered
		}
	}
	waiting := 0
	for _, d := range s.hooks.log {
		if d.state == deliveryWaiting {
			waiting++
		}
	}
	if waiting != all/10 {
		t.Errorf("%d of %d unfinished deliveries are remembered", waiting, all/10)
	}
	if n := len(s.hooks.log); n > all/2 {
		t.Errorf("%d of %d deliveries are remembered", n, all)
	}
	if last := s.hooks.log[len(s.hooks.log)-1]; last.seq != all {
		t.Errorf("the last remembered is %d, not %d", last.seq, all)
	}
}
