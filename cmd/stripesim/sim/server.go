package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server is a stand-in that listens.
type Server struct {
	*Sim
	APIURL     string // http://host:port, without a path
	ControlURL string

	api, control *http.Server
	wait         sync.WaitGroup
	err          error
	once         sync.Once
}

// Start makes a stand-in and lets it listen on loopback, on free ports. It is
// what a test needs:
//
//	stripe, err := sim.Start(sim.Options{})
//	if err != nil { … }
//	t.Cleanup(func() { stripe.Close() })
func Start(o Options) (*Server, error) {
	s, err := New(o)
	if err != nil {
		return nil, err
	}
	server, err := s.Listen("127.0.0.1:0", "127.0.0.1:0", "")
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return server, nil
}

// Listen serves the API and the control API. Without a token control is open,
// which is allowed on a loopback address only.
func (s *Sim) Listen(api, control, token string) (*Server, error) {
	apiListener, err := net.Listen("tcp", api)
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	controlListener, err := net.Listen("tcp", control)
	if err != nil {
		apiListener.Close()
		return nil, fmt.Errorf("listen for control: %w", err)
	}
	if token == "" && !controlListener.Addr().(*net.TCPAddr).IP.IsLoopback() {
		apiListener.Close()
		controlListener.Close()
		return nil, fmt.Errorf("listen for control: %s is not a loopback address, so a token is needed", controlListener.Addr())
	}
	errorLog := slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
	server := &Server{
		Sim:        s,
		APIURL:     "http://" + reachable(apiListener),
		ControlURL: "http://" + reachable(controlListener),
		api:        &http.Server{Handler: s.API(), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 5 * time.Minute, ErrorLog: errorLog},
		control:    &http.Server{Handler: s.Control(token), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 5 * time.Minute, ErrorLog: errorLog},
	}
	server.serve(server.api, apiListener)
	server.serve(server.control, controlListener)
	return server, nil
}

// reachable is the address to dial for a listener that may listen on all
// addresses.
func reachable(l net.Listener) string {
	address := l.Addr().(*net.TCPAddr)
	if address.IP.IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", address.Port)
	}
	return address.String()
}

func (s *Server) serve(h *http.Server, l net.Listener) {
	s.wait.Go(func() {
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("serve on %s: %w", l.Addr(), err))
		}
	})
}

// Shutdown answers what is under way, ends delays and hangs, and closes
// everything. Connections still busy when ctx ends are cut.
func (s *Server) Shutdown(ctx context.Context) error {
	s.once.Do(func() {
		s.stop()
		for _, h := range []*http.Server{s.api, s.control} {
			if err := h.Shutdown(ctx); err != nil {
				s.err = errors.Join(s.err, err, h.Close())
			}
		}
		s.wait.Wait()
		s.err = errors.Join(s.err, s.Sim.Close())
	})
	return s.err
}

// Close is Shutdown with a few seconds of patience.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return s.Shutdown(ctx)
}
