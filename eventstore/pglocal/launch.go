package pglocal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// portTries is how many ports are tried before it is said that none is free.
	portTries = 20
	// orphanWait is how long the children of a killed server are given to see it
	// gone: they hold its shared memory until then.
	orphanWait = 15 * time.Second
	// patience is the time between two words to the log while a server recovers.
	patience = 10 * time.Second
)

// launch finds the cluster's server running or starts it, and returns when it
// answers. The caller holds the data directory's lock.
func (s *Server) launch(ctx context.Context, opts Options) error {
	err := s.tryLaunch(ctx, opts)
	ended, ok := errors.AsType[*endedError](err)
	if !ok || !s.cluster.volatile || ended.portTaken() {
		return err
	}
	s.log.Warn("a volatile cluster does not start and is made anew", "dir", s.cluster.dir(), "said", lastLines(ended.said))
	if err := s.cluster.discard(); err != nil {
		return err
	}
	if err := s.cluster.initialise(ctx); err != nil {
		return err
	}
	return s.tryLaunch(ctx, opts)
}

func (s *Server) tryLaunch(ctx context.Context, opts Options) error {
	port, ports := opts.Port, 0
	waitUntil := time.Now().Add(orphanWait)
	for {
		pm, running, err := runningPostmaster(s.cluster.dir())
		if err != nil {
			return err
		}
		if running {
			again, err := s.join(ctx, pm)
			if again {
				continue
			}
			return err
		}

		if port == 0 {
			if port, err = freePort(); err != nil {
				return err
			}
		}
		err = s.startOn(ctx, port, opts.MaxConnections)
		ended, isEnded := errors.AsType[*endedError](err)
		switch {
		case err == nil:
			s.port = port
			s.log.Info("PostgreSQL started", "version", s.cluster.bin.version, "port", port, "dir", s.cluster.dir(), "user", s.cluster.who.name)
			return nil
		case isEnded && ended.portTaken():
			if ports++; ports == portTries {
				return fmt.Errorf("no free port after %d tries: %w", ports, err)
			}
			port = 0
		case isEnded && ended.orphaned() && time.Now().Before(waitUntil):
			if err := sleep(ctx, 10*pause); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// join waits for a server that somebody else started. again says that it has
// gone in the meantime.
func (s *Server) join(ctx context.Context, pm postmaster) (again bool, err error) {
	if pm.status == "stopping" {
		return true, s.cluster.awaitEnd(ctx, pm.pid)
	}
	port, err := s.awaitReady(ctx, pm.pid, 0)
	if _, ended := errors.AsType[*endedError](err); ended {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	s.port = port
	s.log.Info("PostgreSQL is running already", "port", port, "dir", s.cluster.dir(), "pid", pm.pid)
	return false, nil
}

func (s *Server) startOn(ctx context.Context, port, connections int) error {
	pid, logged, err := s.cluster.spawn(port, connections)
	if err != nil {
		return err
	}
	_, err = s.awaitReady(ctx, pid, logged)
	if err != nil && alive(pid) {
		return errors.Join(err, s.cluster.end(context.WithoutCancel(ctx), pid))
	}
	return err
}

// awaitReady waits until the server of that pid answers to our password, and
// returns its port. A recovery takes as long as it takes: only ctx ends the wait,
// or the server's own end, which is an *endedError.
func (s *Server) awaitReady(ctx context.Context, pid int, logged int64) (int, error) {
	nextWord := time.Now().Add(patience)
	for {
		pm, ok, err := readPostmaster(s.cluster.dir())
		if err != nil {
			return 0, err
		}
		if ok && pm.pid == pid && pm.status == "ready" {
			return pm.port, s.greet(ctx, pm.port)
		}
		if !alive(pid) {
			return 0, &endedError{said: s.cluster.logSince(logged), path: s.cluster.logPath()}
		}
		if now := time.Now(); now.After(nextWord) {
			s.log.Warn("PostgreSQL is still starting", "status", pm.status, "log", s.cluster.logPath())
			nextWord = now.Add(patience)
		}
		if err := sleep(ctx, pause); err != nil {
			return 0, err
		}
	}
}

// greet makes sure that what listens on the port is our server.
func (s *Server) greet(ctx context.Context, port int) error {
	s.port = port
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("the server runs, yet refuses us: %w", err)
	}
	return conn.Close(ctx)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// endedError reports a server that ended before it was ready.
type endedError struct{ said, path string }

func (e *endedError) Error() string {
	if e.said == "" {
		return "the server ended at once; its log is " + e.path
	}
	return fmt.Sprintf("the server ended: %s (its log is %s)", lastLines(e.said), e.path)
}

// portTaken reports that another program has the port.
func (e *endedError) portTaken() bool {
	return strings.Contains(e.said, "could not create any TCP/IP sockets") || strings.Contains(e.said, "Address already in use")
}

// orphaned reports that a server before this one is not wholly gone, or that one
// was quicker.
func (e *endedError) orphaned() bool {
	return strings.Contains(e.said, "pre-existing shared memory block") || strings.Contains(e.said, `lock file "postmaster.pid" already exists`)
}

// discard removes a volatile cluster's data.
func (c cluster) discard() error {
	if !c.volatile {
		return errors.New("durable data is never discarded")
	}
	return os.RemoveAll(c.dir())
}
