package verify_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/billonce/billonce/cmd/billingctl/internal/verify"
	"github.com/billonce/billonce/eventstore/archive"
)

// exported is the log as a file.
func (h *house) exported(part archive.Part) []byte {
	h.t.Helper()
	var file bytes.Buffer
	if _, err := archive.Export(h.t.Context(), h.Store, &file, archive.Selection{Part: part}); err != nil {
		h.t.Fatal(err)
	}
	return file.Bytes()
}

// ofFile is what a check of a file finds.
func ofFile(t *testing.T, file []byte) (verify.Report, string) {
	t.Helper()
	var found []string
	report, err := verify.File(bytes.NewReader(file), verify.Options{Found: func(d verify.Difference) { found = append(found, d.Kind+": "+d.About+": "+d.Detail) }})
	if err != nil {
		t.Fatal(err)
	}
	return report, strings.Join(found, "\n")
}

// A file is checked without a database: itself, and what its events fold to.
func TestFile(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.month()
	file := h.exported(archive.Part{})
	online, _ := h.verified()
	if report, found := ofFile(t, file); found != "" || report.Events != online.Events || report.Streams != 7 || report.Differences != 0 {
		t.Errorf("the whole log: %+v, online %+v\n%s", report, online, found)
	}
	for name, part := range map[string]archive.Part{"a stream": {Stream: "customer/paid_0"}, "the end": {From: 12}} {
		if report, found := ofFile(t, h.exported(part)); found != "" || report.Events == 0 || report.Events >= online.Events {
			t.Errorf("%s: %+v\n%s", name, report, found)
		}
	}
	for name, test := range map[string]struct {
		file []byte
		want string
	}{
		"nothing": {nil, "file: line 1: the file is empty"},
		"a half":  {file[:len(file)/2], "in the middle of this line"},
		"edited":  {bytes.Replace(file, []byte("pm_1"), []byte("pm_2"), 1), "file: line 2: it was changed after it was written"},
	} {
		if report, found := ofFile(t, test.file); !strings.Contains(found, test.want) || report.Differences != 1 {
			t.Errorf("%s: %+v %s", name, report, found)
		}
	}
	// The file is whole; the log in it is not.
	h.exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload, metadata)
			SELECT partition, stream_id, 7, event_type, sequence_key, replace(payload::text, 'ch_', 'ch2_')::json, metadata FROM events WHERE stream_id = 'customer/paid_0' AND stream_version = 5`,
		`DELETE FROM events WHERE stream_id = 'customer/paid_1' AND stream_version = 6`,
		`UPDATE events SET event_type = 'tomorrow.v1' WHERE stream_id = 'customer/sub_0' AND stream_version = 2`)
	report, found := ofFile(t, h.exported(archive.Part{}))
	for _, want := range []string{
		"chain: customer/paid_0 version 7", "fact: customer/paid_0 version 7", "2026-11 is billed twice: by ch_paid_0 and by ch2_paid_0",
		"key: command refund-charge/paid_1/r-1: it made version 6 of customer/paid_1, which ends at 5", "unknown: customer/sub_0 version 2",
	} {
		if !strings.Contains(found, want) {
			t.Errorf("%q is not found in\n%s", want, found)
		}
	}
	if report.Differences != 5 { // the renamed type breaks its chain, too
		t.Errorf("%d differences:\n%s", report.Differences, found)
	}
}
