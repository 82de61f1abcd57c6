package pgtest

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy stands between a client and PostgreSQL and breaks their connections
// where a test says. Above all it makes commits whose outcome the client does
// not know.
type Proxy struct {
	dsn      string
	network  string // of the server
	address  string
	listener net.Listener
	done     sync.WaitGroup

	mu     sync.Mutex
	links  map[*link]struct{}
	loss   *loss
	gate   chan struct{} // closed while messages may pass
	delay  time.Duration // of each message
	paused bool
	closed bool
}

// loss is what is to be lost next.
type loss struct {
	request    bool     // the COMMIT itself, not its answer
	containing []string // in the transaction's statements
	happened   chan struct{}
}

// NewProxy returns a proxy in front of the server that dsn names, open until the
// test ends.
func NewProxy(t testing.TB, dsn string) *Proxy {
	t.Helper()
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("pgtest: proxy: %v", err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: proxy: %v", err)
	}
	host, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatalf("pgtest: proxy: %v", err)
	}
	p := &Proxy{dsn: withAddress(dsn, host, port), listener: listener, links: map[*link]struct{}{}, gate: make(chan struct{})}
	close(p.gate)
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	p.done.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// DSN is the URL of the database by way of the proxy.
func (p *Proxy) DSN() string { return p.dsn }

// CutAll breaks all connections there are. New ones are let through.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Pause holds back everything in both directions, new connections too, until
// Resume. A second Pause does nothing.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.paused && !p.closed {
		p.paused = true
		p.gate = make(chan struct{})
	}
}

// Delay makes connections that are opened from now on long: every message comes
// in d later, either way, so that a round trip takes 2d more.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Resume lets through again what Pause holds back.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused {
		p.paused = false
		close(p.gate)
	}
}

// DropServerToClientOnCommit loses the next answer that tells of a commit, and
// breaks that connection: the transaction has been committed and its client
// does not know. With texts, only a transaction whose statements hold them all
// counts. Once it has happened the returned channel is closed, and commits pass
// again.
//
// A commit is an answered COMMIT, or the end of an INSERT, UPDATE, DELETE, MERGE
// or COPY outside a transaction block, or of a SELECT with an INSERT INTO in its
// WITH; another SELECT that writes is not seen.
func (p *Proxy) DropServerToClientOnCommit(containing ...string) <-chan struct{} {
	return p.arm(&loss{containing: containing, happened: make(chan struct{})})
}

// DropClientToServerOnCommit loses the next COMMIT itself, and breaks that
// connection: the transaction is rolled back and its client does not know. Texts
// and the channel are those of [Proxy.DropServerToClientOnCommit].
func (p *Proxy) DropClientToServerOnCommit(containing ...string) <-chan struct{} {
	return p.arm(&loss{request: true, containing: containing, happened: make(chan struct{})})
}

func (p *Proxy) arm(l *loss) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loss = l
	return l.happened
}

// lose reports whether the loss that is armed is of this kind and meant for a
// transaction that said this. If so, it has happened.
func (p *Proxy) lose(request bool, said string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.loss.means(request, said) {
		return false
	}
	close(p.loss.happened)
	p.loss = nil
	return true
}

// mayLose reports whether lose will, if it comes to a commit.
func (p *Proxy) mayLose(request bool, said string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loss.means(request, said)
}

func (l *loss) means(request bool, said string) bool {
	return l != nil && l.request == request &&
		!slices.ContainsFunc(l.containing, func(text string) bool { return !strings.Contains(said, text) })
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(p.network, p.address)
		if err != nil {
			client.Close()
			continue
		}
		l := newLink(p, p.lengthen(client), p.lengthen(server))
		if !p.add(l) {
			l.close()
			return
		}
		p.done.Go(func() { l.run(l.requests) })
		p.done.Go(func() { l.run(l.answers) })
	}
}

func (p *Proxy) lengthen(conn net.Conn) net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.delay == 0 {
		return conn
	}
	l := newLate(conn, p.delay)
	p.done.Go(l.deliver)
	return l
}

func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) remove(l *link) {
	l.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

func (p *Proxy) close() {
	p.Resume()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.listener.Close()
	p.CutAll()
	p.done.Wait()
}

// forward passes bytes on, once the proxy is not paused.
func (p *Proxy) forward(to io.Writer, message []byte) error {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	<-gate
	_, err := to.Write(message)
	return err
}

var errLost = errors.New("lost on purpose")
