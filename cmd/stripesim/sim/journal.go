package sim

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

// journalFormat is the first line's promise about the rest.
const journalFormat = "stripesim/1"

// record is one line of the journal: everything that one request changed.
type record struct {
	At        int64            `json:"t"`
	Format    string           `json:"format,omitempty"` // first line only
	Account   string           `json:"account,omitempty"`
	Intents   []*intent        `json:"pi,omitempty"`
	Charges   []*charge        `json:"ch,omitempty"`
	Refunds   []*refund        `json:"re,omitempty"`
	Customers []*customer      `json:"cu,omitempty"`
	Methods   []*paymentMethod `json:"pm,omitempty"`
	Overrides []override       `json:"ov,omitempty"`
	Later     []*forward       `json:"la,omitempty"`
	Forwarded []string         `json:"fw,omitempty"`
	Offset    *int64           `json:"of,omitempty"` // the clock's, nanoseconds
	Forgotten []string         `json:"fo,omitempty"` // keys
	Disputes  []*dispute       `json:"dp,omitempty"`
	Setups    []*setupIntent   `json:"si,omitempty"`
	Events    []eventRecord    `json:"ev,omitempty"`
	By        *cause           `json:"by,omitempty"` // of the events
	Delivered []string         `json:"dv,omitempty"` // events
	Missed    []string         `json:"ms,omitempty"` // events
	Key       *keyRecord       `json:"k,omitempty"`  // its answer is the line's third column
}

// keyRecord is a finished key.
type keyRecord struct {
	Scope       string `json:"s"`
	Path        string `json:"p"`
	Fingerprint []byte `json:"fp"`
	Began       int64  `json:"b"`
	Request     string `json:"r"`
	Status      int    `json:"st"`
}

// journal is the durable file. A line is checksum, record and, where a key
// keeps an answer, that answer, separated by tabs, which JSON never contains
// raw. Stored answers are read back from here instead of being held in memory.
type journal struct {
	file *os.File

	mu    sync.Mutex // guards what follows
	next  []byte
	end   int64        // file position after next
	state bytes.Buffer // scratch for one record

	writing sync.Mutex // held by whoever writes; guards spare
	spare   []byte
	written atomic.Int64
	failed  atomic.Pointer[error]
}

// openJournal opens or makes the file, locks it against a second stand-in, and
// hands each record to apply together with where its answer stands. A torn last
// line is cut off; damage anywhere else is an error.
func openJournal(path string, apply func(r *record, offset int64, length int) error) (j *journal, err error) {
	if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
		path = filepath.Join(path, "stripesim.journal")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("open journal: %s is not a regular file", path), err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("open journal: %s is in use by another process: %w", path, err)
	}
	end, err := replay(file, apply)
	if err != nil {
		return nil, fmt.Errorf("replay journal %s: %w", path, err)
	}
	if err := file.Truncate(end); err != nil {
		return nil, fmt.Errorf("cut torn line: %w", err)
	}
	if _, err := file.Seek(end, io.SeekStart); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j = &journal{file: file, end: end}
	j.written.Store(end)
	return j, nil
}

// replay reads all whole lines and returns the position after the last.
func replay(file io.Reader, apply func(*record, int64, int) error) (int64, error) {
	in := bufio.NewReaderSize(file, 1<<20)
	var end int64
	for number := 1; ; number++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil // nothing left, or a line that kill -9 tore: nobody was answered
		}
		if err != nil {
			return 0, err
		}
		r, column, err := parseLine(line[:len(line)-1])
		if err != nil {
			return 0, fmt.Errorf("line %d at byte %d: %w", number, end, err)
		}
		if number == 1 && r.Format != journalFormat {
			return 0, fmt.Errorf("not a journal of this version: format %q, want %q", r.Format, journalFormat)
		}
		if err := apply(r, end+int64(column), len(line)-1-column); err != nil {
			return 0, fmt.Errorf("line %d at byte %d: %w", number, end, err)
		}
		end += int64(len(line))
	}
}

// parseLine checks a line and tells at which column its answer begins.
func parseLine(line []byte) (*record, int, error) {
	sum, rest, ok := bytes.Cut(line, []byte{'\t'})
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !ok || err != nil || crc32.ChecksumIEEE(rest) != uint32(want) {
		return nil, 0, errors.New("damaged: the checksum does not match")
	}
	state, _, _ := bytes.Cut(rest, []byte{'\t'})
	r := new(record)
	if err := json.Unmarshal(state, r); err != nil {
		return nil, 0, err
	}
	return r, min(len(line), len(sum)+1+len(state)+1), nil
}

// append queues a line and returns where its answer will stand. It is called
// under Sim.mu, so lines stand in the order of the changes they tell of.
func (j *journal) append(r *record, answer []byte) (offset int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state.Reset()
	if err := json.NewEncoder(&j.state).Encode(r); err != nil {
		panic(err) // a record is plain data
	}
	state := bytes.TrimSuffix(j.state.Bytes(), []byte{'\n'})
	before := len(j.next)
	j.next = append(j.next, "00000000\t"...)
	content := len(j.next)
	j.next = append(j.next, state...)
	if answer != nil {
		j.next = append(j.next, '\t')
		offset = j.end + int64(len(j.next)-before)
		j.next = append(j.next, answer...)
	}
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.ChecksumIEEE(j.next[content:]))
	hex.Encode(j.next[before:], sum[:])
	j.next = append(j.next, '\n')
	j.end += int64(len(j.next) - before)
	return offset
}

// position is the end of what has been queued.
func (j *journal) position() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.end
}

// flush returns once everything up to position is with the operating system.
// Whoever comes first writes for all that wait.
func (j *journal) flush(position int64) error {
	if j.written.Load() >= position {
		return nil
	}
	j.writing.Lock()
	defer j.writing.Unlock()
	if j.written.Load() >= position {
		return nil
	}
	if failed := j.failed.Load(); failed != nil {
		return *failed
	}
	j.mu.Lock()
	lines := j.next
	j.next = j.spare[:0]
	j.mu.Unlock()
	n, err := j.file.Write(lines)
	j.spare = lines[:0]
	if err != nil {
		err = fmt.Errorf("write journal: %w", err)
		j.failed.Store(&err)
		return err
	}
	j.written.Add(int64(n))
	return nil
}

// read returns a stored answer.
func (j *journal) read(offset int64, length int) ([]byte, error) {
	if err := j.flush(offset + int64(length)); err != nil {
		return nil, err
	}
	b := make([]byte, length)
	if _, err := j.file.ReadAt(b, offset); err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	return b, nil
}

// clear empties the file.
func (j *journal) clear() error {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.file.Truncate(0); err != nil {
		return fmt.Errorf("clear journal: %w", err)
	}
	if _, err := j.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("clear journal: %w", err)
	}
	j.next, j.end = j.next[:0], 0
	j.written.Store(0)
	return nil
}

// replace makes lines, whole ones, the content of the file.
func (j *journal) replace(lines []byte) error {
	if err := j.clear(); err != nil {
		return err
	}
	j.mu.Lock()
	j.next = append(j.next, lines...)
	j.end = int64(len(lines))
	j.mu.Unlock()
	return j.flush(int64(len(lines)))
}

func (j *journal) close() error {
	err := j.flush(j.position())
	// Closing alone may leave the lock for a moment, with whoever else in this
	// process or a child about to exec still holds the file.
	unlocked := syscall.Flock(int(j.file.Fd()), syscall.LOCK_UN)
	if errors.Is(unlocked, syscall.EBADF) { // closed before: so it is unlocked
		unlocked = nil
	}
	return errors.Join(err, unlocked, j.file.Close())
}
