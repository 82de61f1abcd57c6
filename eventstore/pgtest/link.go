package pgtest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// link is one connection through a proxy. It reads as much of PostgreSQL's
// protocol (version 3, "Message Formats" in its manual) as it takes to know
// transactions and commits.
type link struct {
	proxy  *Proxy
	client net.Conn
	server net.Conn

	mu         sync.Mutex
	statements map[string]string // prepared, by name
	said       strings.Builder   // the statements of this transaction
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{proxy: p, client: client, server: server, statements: map[string]string{}}
}

// run does one direction; when either ends, both do.
func (l *link) run(direction func() error) {
	defer l.proxy.remove(l)
	_ = direction() // a broken connection is what a proxy is for
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
}

// requests passes on what the client says.
func (l *link) requests() error {
	from := bufio.NewReader(l.client)
	if err := l.startup(from); err != nil {
		return err
	}
	for {
		kind, message, err := readMessage(from)
		if err != nil {
			return err
		}
		if l.hear(kind, message[5:]) && l.proxy.lose(true, l.transaction()) {
			return errLost
		}
		if err := l.proxy.forward(l.server, message); err != nil {
			return err
		}
	}
}

// The requests that may come before a connection's first message of the usual
// form.
const (
	wantsTLS    = 80877103
	wantsGSSAPI = 80877104
)

// startup passes the first packet on, which has no kind. Encryption is declined:
// the proxy could not read it.
func (l *link) startup(from *bufio.Reader) error {
	for {
		packet, err := readPacket(from, nil)
		if err != nil {
			return err
		}
		if len(packet) >= 8 {
			switch binary.BigEndian.Uint32(packet[4:]) {
			case wantsTLS, wantsGSSAPI:
				if _, err := l.client.Write([]byte{'N'}); err != nil {
					return err
				}
				continue
			}
		}
		return l.proxy.forward(l.server, packet)
	}
}

// hear notes the statements of the transaction, and reports whether the message
// asks for a commit.
func (l *link) hear(kind byte, body []byte) (commits bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch kind {
	case 'Q': // Query
		sql, _ := cutString(body)
		return l.note(sql)
	case 'P': // Parse
		statement, rest := cutString(body)
		l.statements[statement], _ = cutString(rest)
	case 'B': // Bind
		_, rest := cutString(body)
		statement, _ := cutString(rest)
		return l.note(l.statements[statement])
	}
	return false
}

func (l *link) note(sql string) (commits bool) {
	l.said.WriteString(sql)
	l.said.WriteByte('\n')
	word, _, _ := strings.Cut(strings.ToLower(strings.Trim(sql, "; \t\r\n")), " ")
	return word == "commit" || word == "end"
}

func (l *link) transaction() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.String()
}

func (l *link) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said.Reset()
}

// answers passes on what the server says.
func (l *link) answers() error {
	var (
		from    = bufio.NewReader(l.server)
		inBlock bool   // in a transaction block
		held    []byte // the answers to a write outside of one, until it is committed
		wrote   bool
	)
	for {
		kind, message, err := readMessage(from)
		if err != nil {
			return err
		}
		body := message[5:]
		switch kind {
		case 'C': // CommandComplete
			tag, _ := cutString(body)
			word, _, _ := strings.Cut(tag, " ")
			switch word {
			case "BEGIN", "START":
				inBlock = true
			case "ROLLBACK":
				inBlock = false
			case "COMMIT":
				inBlock = false
				if l.proxy.lose(false, l.transaction()) {
					return errLost
				}
			case "INSERT", "UPDATE", "DELETE", "MERGE", "COPY":
				wrote = wrote || !inBlock && l.proxy.mayLose(false, l.transaction())
			case "SELECT":
				said := l.transaction()
				wrote = wrote || !inBlock && strings.Contains(said, "INSERT INTO") && l.proxy.mayLose(false, said)
			}
		case 'E': // ErrorResponse
			wrote = false
		case 'Z': // ReadyForQuery
			inBlock = !bytes.Equal(body, []byte{'I'})
			if wrote && !inBlock && l.proxy.lose(false, l.transaction()) {
				return errLost
			}
			wrote = false
			if !inBlock {
				l.forget()
			}
		}
		held = append(held, message...)
		if wrote {
			continue
		}
		if err := l.proxy.forward(l.client, held); err != nil {
			return err
		}
		held = held[:0]
	}
}

// maxMessage is more than any test sends: 256 MiB.
const maxMessage = 256 << 20

// readMessage reads one message: its kind, and all its bytes with the kind and
// the length before the body.
func readMessage(from *bufio.Reader) (byte, []byte, error) {
	kind, err := from.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	message, err := readPacket(from, []byte{kind})
	return kind, message, err
}

// readPacket reads a length and what it counts, and appends both to before.
func readPacket(from *bufio.Reader, before []byte) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size < 4 || size > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes", size)
	}
	packet := append(before, length[:]...)
	start := len(packet)
	packet = append(packet, make([]byte, size-4)...)
	_, err := io.ReadFull(from, packet[start:])
	return packet, err
}

// cutString reads a string that ends with a zero byte.
func cutString(body []byte) (string, []byte) {
	text, rest, _ := bytes.Cut(body, []byte{0})
	return string(text), rest
}
