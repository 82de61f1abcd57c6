package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/billonce/billonce/cmd/billingctl/internal/imports"
)

// importCommand imports customers.
type importCommand struct {
	File string `arg:"" help:"File of NDJSON, a customer a line; - is standard input." placeholder:"FILE.ndjson"`
}

// Help is the file's format.
func (importCommand) Help() string {
	return `A line holds a customer and what they pay for, and nothing else in this version:

{"customer_id": "cust_1", "stripe_customer_id": "cus_1", "payment_method_id": "pm_1", "amount_minor": 4900, "currency": "usd", "cadence": "monthly", "anchor_day": 1, "time_zone": "Europe/Berlin", "starts_on": "2026-12-01"}

The same import again changes nothing. Rows that are refused are named by their line; the others are imported.`
}

// shownFaults is how many refused rows are named.
const shownFaults = 50

// Run imports the file.
func (i importCommand) Run(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	in, rows, err := i.open(s)
	if err != nil {
		return usageError{fmt.Errorf("import: %w", err)}
	}
	defer in.Close()
	bar := s.progress().Start("importing", "customers", rows)
	var refused []imports.RowError
	result, err := imports.Run(s.ctx, c, in, imports.Options{
		Progress: bar.Set,
		Refused: func(e imports.RowError) {
			if len(refused) < shownFaults {
				refused = append(refused, e)
			}
		},
	})
	bar.End()
	for _, e := range refused {
		_, _ = fmt.Fprintln(s.Err, e)
	}
	if more := result.Failed - len(refused); more > 0 {
		_, _ = fmt.Fprintf(s.Err, "and %d more rows\n", more)
	}
	if err != nil {
		return err
	}
	err = s.printf("import: rows=%d imported=%d replayed=%d failed=%d\n", result.Rows, result.Imported, result.Replayed, result.Failed)
	if err == nil && result.Failed > 0 {
		err = errReported
	}
	return err
}

// open opens the file and counts its rows; those of a pipe are not known.
func (i importCommand) open(s *shell) (io.ReadCloser, int, error) {
	if i.File == "-" {
		return io.NopCloser(s.In), 0, nil
	}
	f, err := os.Open(i.File)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return f, 0, err
	}
	rows, err := countRows(f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, rows, nil
}

func countRows(r io.Reader) (rows int, err error) {
	block := make([]byte, 256<<10)
	blank := true
	for {
		n, err := r.Read(block)
		for b := block[:n]; len(b) > 0; {
			end := bytes.IndexByte(b, '\n')
			line := b
			if end >= 0 {
				line = b[:end]
			}
			blank = blank && len(bytes.TrimSpace(line)) == 0
			if end < 0 {
				break
			}
			if !blank {
				rows++
			}
			b, blank = b[end+1:], true
		}
		if err == io.EOF {
			if !blank {
				rows++
			}
			return rows, nil
		}
		if err != nil {
			return 0, err
		}
	}
}
