package archive_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/archive"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// Property tests start from a fixed seed, so that a run can be repeated.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.seed": "20261101", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	flag.Parse()
	os.Exit(m.Run())
}

func storeOn(t testing.TB, pool *pgxpool.Pool) *eventstore.Store {
	t.Helper()
	s := eventstore.New(pool, eventstore.NewCodec(domain.Events()), slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	return s
}

// another is the pool of a second database of the test.
func another(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pools := make(chan *pgxpool.Pool, 1)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.Run("another database", func(t *testing.T) {
			pools <- pgtest.Pool(t)
			<-done
		})
	}()
	t.Cleanup(func() { close(done); <-ended })
	return <-pools
}

// fixture is a log of some customers: facts with and without keys, decisions
// that nothing has to happen, requests, and text that JSON spells in its ways.
func fixture(t testing.TB, s *eventstore.Store) {
	t.Helper()
	heads := map[domain.CustomerID]eventstore.Head{}
	add := func(c domain.CustomerID, key domain.Key, request *eventstore.RequestKey, events ...domain.Event) {
		t.Helper()
		r, err := s.Append(t.Context(), eventstore.Batch{
			Stream: c.Stream(), Head: heads[c], Key: key, Command: "test", Fingerprint: []byte{0, 255, byte(len(events))}, Request: request,
			Meta: eventstore.Meta{Actor: `op "<&> ` + "\u2028é", Correlation: "c-1"}, Events: events,
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Recorded) > 0 {
			heads[c] = r.Recorded[len(r.Recorded)-1].Head()
		}
	}
	for n := range 5 {
		c := domain.CustomerID(fmt.Sprintf("cust_%d", n))
		add(c, domain.Key("register/"+c), nil, domain.CustomerRegistered{CustomerID: c, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"})
		add(c, "", nil, domain.PaymentMethodChanged{CustomerID: c, PaymentMethodID: "pm_2"})
		add(c, domain.Key("pause/"+c), &eventstore.RequestKey{Actor: "tester", Key: domain.Key("k-" + c), BodyDigest: []byte{1, 2}},
			domain.SubscriptionPaused{CustomerID: c, Reason: "a < b & \"c\" \\ \u2028 ü\t"}, domain.PaymentMethodChanged{CustomerID: c, PaymentMethodID: "pm_3"})
		add(c, domain.Key("nothing/"+c), nil)
	}
}

func export(t testing.TB, s *eventstore.Store, what archive.Part) []byte {
	t.Helper()
	var file bytes.Buffer
	if _, err := archive.Export(t.Context(), s, &file, archive.Selection{Part: what}); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// rows is everything that the log's tables hold, as text.
func rows(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	var all strings.Builder
	for _, table := range []string{"events", "command_keys", "request_keys"} {
		rows, err := pool.Query(t.Context(), `SELECT t::text FROM `+table+` t ORDER BY t::text`)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s\n%s\n", table, strings.Join(lines, "\n"))
	}
	return all.String()
}

// An imported log is the exported one to the byte: rows, receipts, chains. What
// was remembered is remembered, and new facts come behind the old ones.
func TestImportIsByteExact(t *testing.T) {
	t.Parallel()
	here := storeOn(t, pgtest.Pool(t))
	fixture(t, here)
	file := export(t, here, archive.Part{})
	pool := another(t)
	trailer, err := archive.Import(t.Context(), pool, bytes.NewReader(file), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := (archive.Counts{Events: 20, CommandKeys: 15, RequestKeys: 5, LastPosition: trailer.LastPosition}); trailer.Counts != want {
		t.Errorf("imported %s, want %s", trailer.Counts, want)
	}
	if got, want := rows(t, pool), rows(t, here.Pool()); got != want {
		t.Errorf("the imported rows are\n%s\nand were\n%s", got, want)
	}
	there := storeOn(t, pool)
	again := eventstore.Batch{Stream: "customer/cust_1", Key: "register/cust_1", Command: "test", Fingerprint: []byte{0, 255, 1},
		Events: []domain.Event{domain.CustomerRegistered{CustomerID: "cust_1"}}}
	was, err := here.Append(t.Context(), again)
	if err != nil {
		t.Fatal(err)
	}
	is, err := there.Append(t.Context(), again)
	if err != nil || !is.Receipt.Replayed || fmt.Sprint(is.Receipt) != fmt.Sprint(was.Receipt) {
		t.Errorf("the same command answers %+v, %v; it was %+v", is.Receipt, err, was.Receipt)
	}
	events, err := there.Load(t.Context(), pool, "customer/cust_1", 0)
	if err != nil {
		t.Fatal(err)
	}
	next, err := there.Append(t.Context(), eventstore.Batch{Stream: "customer/cust_1", Head: events[3].Head(), Command: "test",
		Events: []domain.Event{domain.PaymentMethodChanged{CustomerID: "cust_1", PaymentMethodID: "pm_4"}}})
	if err != nil || next.Receipt.Position.Position <= trailer.LastPosition || !next.Recorded[0].ChainedTo(events[3].Digest) {
		t.Errorf("the next fact is %+v, %v", next, err)
	}
}

// An empty log is a log.
func TestEmptyLogIsExported(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := storeOn(t, pool)
	if _, err := archive.Import(t.Context(), pool, bytes.NewReader(export(t, s, archive.Part{})), nil, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s.Append(t.Context(), eventstore.Batch{Stream: "customer/a", Command: "test", Events: []domain.Event{domain.PaymentMethodChanged{CustomerID: "a", PaymentMethodID: "pm"}}})
	if err != nil || r.Receipt.Position.Position != 1 {
		t.Errorf("the first fact is %+v, %v", r.Receipt, err)
	}
}

// read reads a whole file.
func read(file []byte) (events []eventstore.Recorded, trailer archive.Trailer, err error) {
	r, err := archive.Open(bytes.NewReader(file))
	if err != nil {
		return nil, trailer, err
	}
	for r.Next() {
		if e, ok := r.Line().(eventstore.Recorded); ok {
			events = append(events, e)
		}
	}
	return events, r.Trailer(), r.Err()
}

// Parts are exported, and not imported.
func TestPartsAreNotImported(t *testing.T) {
	t.Parallel()
	s := storeOn(t, pgtest.Pool(t))
	fixture(t, s)
	for name, test := range map[string]struct {
		part archive.Part
		want int
	}{"a stream": {archive.Part{Stream: "customer/cust_2"}, 4}, "from a position on": {archive.Part{From: 11}, 10}, "both": {archive.Part{Stream: "customer/cust_2", From: 11}, 2}} {
		file := export(t, s, test.part)
		events, trailer, err := read(file)
		if err != nil || len(events) != test.want || trailer.CommandKeys != 0 {
			t.Errorf("%s: %d events, %+v, %v", name, len(events), trailer, err)
		}
		if _, err := archive.Import(t.Context(), s.Pool(), bytes.NewReader(file), nil, nil); !errors.Is(err, archive.ErrPart) {
			t.Errorf("%s: the import answers %v", name, err)
		}
	}
}

// A log that has a history, or whose readers or tables have one, takes no other.
func TestImportNeedsAnEmptyLog(t *testing.T) {
	t.Parallel()
	here := storeOn(t, pgtest.Pool(t))
	file := export(t, here, archive.Part{})
	for name, sql := range map[string]string{
		"command_keys is not empty":                `INSERT INTO command_keys (key, command, fingerprint, stream_id, first_version, last_version) VALUES ('k', 'c', '', 's', 1, 0)`,
		"sagas is not empty":                       `INSERT INTO sagas (saga, id, state, step, version, last_position) VALUES ('billing', 'a/2026-11', '{}', '', 1, 1)`,
		"processor preflight has read another log": `INSERT INTO processor_tokens (processor, partition, position) VALUES ('preflight', 1, 7)`,
	} {
		err := pgx.BeginFunc(t.Context(), here.Pool(), func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `TRUNCATE command_keys, sagas, processor_tokens`); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), sql)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = archive.Import(t.Context(), here.Pool(), bytes.NewReader(file), []string{"sagas"}, nil); !errors.Is(err, archive.ErrNotEmpty) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the import answers %v", name, err)
		}
	}
}

// lines are a file's lines with their ends.
func lines(file []byte) [][]byte {
	return bytes.SplitAfter(file[:len(file)], []byte("\n"))[:bytes.Count(file, []byte("\n"))]
}

func joined(lines ...[][]byte) (file []byte) {
	for _, l := range lines {
		file = append(file, bytes.Join(l, nil)...)
	}
	return file
}

// Whatever happens to a file, its import names the line and writes nothing.
func TestDamagedFilesAreRefused(t *testing.T) {
	t.Parallel()
	here := storeOn(t, pgtest.Pool(t))
	fixture(t, here)
	file := export(t, here, archive.Part{})
	all := lines(file)
	edited := func(n int, old, new string) []byte {
		changed := append([][]byte{}, all...)
		changed[n-1] = bytes.Replace(all[n-1], []byte(old), []byte(new), 1)
		if bytes.Equal(changed[n-1], all[n-1]) {
			t.Fatalf("%q is not in %s", old, all[n-1])
		}
		return joined(changed)
	}
	resealed := func(change func([]any) []any) []byte { return archive.Resealed(t, file, change) }
	event := func(lines []any, n int) *eventstore.Recorded { return lines[n].(*eventstore.Recorded) }
	pool := another(t)
	for name, test := range map[string]struct {
		file []byte
		line int
		want string
	}{
		"nothing":                   {nil, 1, "empty"},
		"something else":            {[]byte("{\"line\":\"event\"}\n"), 1, "not the beginning"},
		"another format":            {edited(1, `"format":1`, `"format":2`), 1, "format 2"},
		"header alone":              {joined(all[:1]), 2, "without its trailer"},
		"cut between lines":         {joined(all[:9]), 10, "without its trailer"},
		"cut in a line":             {file[:len(joined(all[:9]))+40], 10, "in the middle"},
		"trailer cut off":           {joined(all[:len(all)-1]), len(all), "without its trailer"},
		"payload edited":            {edited(3, "pm_2", "pm_9"), 3, "changed after it was written"},
		"time edited":               {edited(5, `"recorded_at":"2`, `"recorded_at":"3`), 5, "changed after it was written"},
		"command key edited":        {edited(len(all)-8, `"key":"`, `"key":"x`), len(all) - 8, "changed after it was written"},
		"sum edited":                {edited(4, `"sum":"`, `"sum":"x`), 4, ""},
		"two lines swapped":         {joined(all[:6], all[7:8], all[6:7], all[8:]), 7, "changed after it was written"},
		"a line left out":           {joined(all[:6], all[7:]), 7, "changed after it was written"},
		"a line twice":              {joined(all[:7], all[6:]), 8, "changed after it was written"},
		"trailer edited":            {edited(len(all), `"events":20`, `"events":21`), len(all), "trailer"},
		"something follows":         {append(bytes.Clone(file), ' '), len(all) + 1, "follows the trailer"},
		"two files":                 {append(bytes.Clone(file), file...), len(all) + 1, "follows the trailer"},
		"payload forged":            {resealed(func(l []any) []any { e := event(l, 2); e.Payload = json.RawMessage(`{}`); return l }), 4, "digest"},
		"event left out, forged":    {resealed(func(l []any) []any { return append(l[:2:2], l[3:]...) }), 4, "version 3 is missing"},
		"position forged":           {resealed(func(l []any) []any { event(l, 4).Position = 3; return l }), 6, "position 3 comes after"},
		"partition forged":          {resealed(func(l []any) []any { e := event(l, 4); e.Partition = (e.Partition + 1) % 64; return l }), 6, "belongs to partition"},
		"event id twice, forged":    {resealed(func(l []any) []any { event(l, 4).EventID = event(l, 3).EventID; return l }), 0, "events_event_id"},
		"a command of no fact":      {resealed(func(l []any) []any { l[20].(*archive.CommandKey).LastVersion = 9; return l }), 22, "which ends at 4"},
		"event among keys":          {resealed(func(l []any) []any { return append(append(l[:19:19], l[20], l[19]), l[21:]...) }), 22, "after the keys"},
		"command after request key": {resealed(func(l []any) []any { return append(append(l[:34:34], l[35], l[34]), l[36:]...) }), 37, "does not belong here"},
	} {
		_, err := archive.Import(t.Context(), pool, bytes.NewReader(test.file), nil, nil)
		fault, ok := errors.AsType[*archive.Fault](err)
		if !ok || test.line > 0 && fault.Line != test.line || !strings.Contains(fault.Detail, test.want) {
			t.Errorf("%s: the import answers %v, want line %d: %s", name, err, test.line, test.want)
		}
		if n := strings.Count(rows(t, pool), "("); n != 0 {
			t.Fatalf("%s: %d rows are written", name, n)
		}
	}
	forgotten := resealed(func(l []any) []any { return append(l[:34:34], l[35:]...) })
	if _, err := archive.Import(t.Context(), pool, bytes.NewReader(forgotten), nil, nil); err == nil || !strings.Contains(err.Error(), "remembers no command for") {
		t.Errorf("a file without a command key: %v", err)
	}
	if _, err := archive.Import(t.Context(), pool, bytes.NewReader(file), nil, nil); err != nil {
		t.Errorf("the file itself, after all this: %v", err)
	}
}

// One byte that is not as it was written, anywhere, is found by reading.
func TestAnyByteCounts(t *testing.T) {
	t.Parallel()
	s := storeOn(t, pgtest.Pool(t))
	fixture(t, s)
	file := export(t, s, archive.Part{})
	if events, _, err := read(file); err != nil || len(events) != 20 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	rapid.Check(t, func(t *rapid.T) {
		changed := bytes.Clone(file)
		at := rapid.IntRange(0, len(file)-1).Draw(t, "at")
		changed[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		if _, trailer, err := read(changed); err == nil {
			t.Fatalf("byte %d of %q is not missed; %+v", at, file[max(0, at-20):min(len(file), at+20)], trailer)
		}
		if _, _, err := read(file[:at]); err == nil {
			t.Fatalf("the file cut off at %d is taken for whole", at)
		}
	})
}

// What is read is cut off with its context, and nothing is left behind.
func TestInterruptedImportWritesNothing(t *testing.T) {
	t.Parallel()
	s := storeOn(t, pgtest.Pool(t))
	fixture(t, s)
	file := export(t, s, archive.Part{})
	pool := another(t)
	ctx, cancel := context.WithCancel(t.Context())
	from := &hook{bytes.NewReader(file), cancel}
	if _, err := archive.Import(ctx, pool, from, nil, nil); err == nil {
		t.Error("the import went through")
	}
	if n := strings.Count(rows(t, pool), "("); n != 0 {
		t.Errorf("%d rows are written", n)
	}
}

// hook calls f when its reader is at the end.
type hook struct {
	*bytes.Reader
	f func()
}

func (h *hook) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p[:min(len(p), 512)])
	if err != nil {
		h.f()
	}
	return n, err
}
