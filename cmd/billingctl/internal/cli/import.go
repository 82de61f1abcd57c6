package cli

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/imports"
	"github.com/billonce/billonce/sagas/stripegateway"
)

// importCommand imports customers.
type importCommand struct {
	File         string         `arg:"" help:"File of NDJSON, a customer a line, or of CSV; - is standard input." placeholder:"FILE.ndjson|FILE.csv"`
	Format       imports.Format `help:"How the file holds its rows: ndjson or csv. Left out: csv if its name ends so." enum:",ndjson,csv" default:"" placeholder:"FORMAT"`
	DryRun       bool           `help:"Check every row and send nothing; the service is not needed."`
	KeyNamespace bool           `help:"Before anything is sent, read which keys were used at Stripe, and refuse rows whose next bills would have one of them. Needs STRIPE_API_BASE and STRIPE_API_KEY."`
}

// Help is the file's format.
func (importCommand) Help() string {
	return `A row holds a customer and what they pay for:

{"customer_id": "cust_1", "stripe_customer_id": "cus_1", "payment_method_id": "pm_1", "amount_minor": 4900, "currency": "usd", "cadence": "monthly", "anchor_day": 1, "time_zone": "Europe/Berlin", "starts_on": "2026-12-01"}

and, if another system has billed them, the last period it has billed and the charges that are known:

"billed_through": "2026-11", "charges": [{"billing_period": "2026-11", "charge_id": "ch_1", "amount_minor": 4900}]

Nothing up to the end of that period is billed here. A CSV file names these fields in its first line; a cell of charges holds the same JSON.

The same import again changes nothing. Rows that are refused are named by their line; the others are imported.`
}

// shownFaults is how many refused rows are named.
const shownFaults = 50

// Run imports the file.
func (i importCommand) Run(s *shell) error {
	if i.Format == "" && strings.EqualFold(filepath.Ext(i.File), ".csv") {
		i.Format = imports.CSV
	}
	options := imports.Options{Format: i.Format, DryRun: i.DryRun}
	var c *client.Client
	var err error
	if !i.DryRun {
		if c, err = s.client(); err != nil {
			return err
		}
	}
	in, rows, err := i.open(s)
	if err != nil {
		return usageError{fmt.Errorf("import: %w", err)}
	}
	defer in.Close()
	if i.KeyNamespace {
		if options.Used, err = usedKeys(s); err != nil {
			return err
		}
	}
	bar := s.progress().Start("importing", "customers", rows)
	var refused []imports.RowError
	options.Progress = bar.Set
	options.Refused = func(e imports.RowError) {
		if len(refused) < shownFaults {
			refused = append(refused, e)
		}
	}
	result, err := imports.Run(s.ctx, c, in, options)
	bar.End()
	slices.SortStableFunc(refused, func(a, b imports.RowError) int { return a.Row - b.Row })
	for _, e := range refused {
		_, _ = fmt.Fprintln(s.Err, e)
	}
	if more := result.Failed - len(refused); more > 0 {
		_, _ = fmt.Fprintf(s.Err, "and %d more rows\n", more)
	}
	if err != nil {
		return err
	}
	if i.DryRun {
		err = s.conclude("import", figure{"rows", result.Rows}, figure{"valid", result.Imported}, figure{"failed", result.Failed}, figure{"sent", 0})
	} else {
		err = s.conclude("import", figure{"rows", result.Rows}, figure{"imported", result.Imported}, figure{"replayed", result.Replayed}, figure{"failed", result.Failed})
	}
	if err == nil && result.Failed > 0 {
		err = errReported
	}
	return err
}

// usedKeys reads which keys of our form were used at Stripe.
func usedKeys(s *shell) (*imports.UsedKeys, error) {
	gateway, err := stripegateway.New(stripegateway.Config{
		BaseURL: os.Getenv("STRIPE_API_BASE"), Key: os.Getenv("STRIPE_API_KEY"), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, usageError{fmt.Errorf("--key-namespace needs STRIPE_API_BASE and STRIPE_API_KEY: %w", err)}
	}
	bar := s.progress().Start("reading Stripe's events", "events", 0)
	used, err := imports.ReadUsedKeys(s.ctx, gateway, bar.Set)
	bar.End()
	if err == nil {
		_, _ = fmt.Fprintf(s.Err, "keys of our form in use at Stripe: %d\n", used.Len())
	}
	return used, err
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
