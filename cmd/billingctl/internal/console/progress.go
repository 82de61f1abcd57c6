package console

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows how far things have come.
type Progress struct {
	w   io.Writer
	tty bool
}

// NewProgress shows progress on w, as bars if that is a terminal.
func NewProgress(w io.Writer) Progress { return Progress{w, isTerminal(w)} }

// Silent shows nothing.
var Silent = Progress{w: io.Discard}

// IsTerminal reports whether somebody sits at a stream.
func IsTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// lineEvery is how often a bar that is no bar says a word.
const lineEvery = 2 * time.Second

// Bar is something on its way. It belongs to one goroutine.
type Bar struct {
	p     Progress
	label string
	unit  string
	total int
	done  int
	bar   *progressbar.ProgressBar // nil: plain lines
	begun time.Time
	said  time.Time
}

// Start begins to show something that takes total steps, each one unit
// ("bills"). A total of 0 is not known.
func (p Progress) Start(label, unit string, total int) *Bar {
	b := &Bar{p: p, label: label, unit: unit, total: total, begun: time.Now()}
	b.said = b.begun
	if !p.tty {
		return b
	}
	most := int64(total)
	if total == 0 {
		most = -1
	}
	b.bar = progressbar.NewOptions64(most,
		progressbar.OptionSetWriter(p.w),
		progressbar.OptionSetDescription(label),
		progressbar.OptionSetWidth(28),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString(unit),
		progressbar.OptionSetPredictTime(total > 0),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionShowElapsedTimeOnFinish(),
		progressbar.OptionThrottle(65*time.Millisecond),
		progressbar.OptionUseANSICodes(true),
		progressbar.OptionSetRenderBlankState(true),
		progressbar.OptionSpinnerType(14),
	)
	return b
}

// Set says how many steps are done.
func (b *Bar) Set(done int) {
	if b.total > 0 {
		done = min(done, b.total)
	}
	b.done = done
	if b.bar != nil {
		_ = b.bar.Set(done)
		return
	}
	if now := time.Now(); now.Sub(b.said) >= lineEvery {
		b.said = now
		b.line(false)
	}
}

// Of is Set where the number of steps may still change.
func (b *Bar) Of(done, total int) {
	if total != b.total && b.bar != nil {
		b.bar.ChangeMax(total)
	}
	b.total = total
	b.Set(done)
}

// Add says that n more steps are done.
func (b *Bar) Add(n int) { b.Set(b.done + n) }

// Clear makes room for something else to be printed; Set shows the bar again.
func (b *Bar) Clear() {
	if b != nil && b.bar != nil {
		_ = b.bar.Clear()
	}
}

// End shows where it has come to, for good.
func (b *Bar) End() {
	if b.bar != nil {
		_ = b.bar.Exit()
		_, _ = fmt.Fprintln(b.p.w)
		return
	}
	b.line(true)
}

// line says in words what a bar would show.
func (b *Bar) line(last bool) {
	took := time.Since(b.begun)
	rate := float64(b.done) / max(took.Seconds(), 0.001)
	of := ""
	if b.total > 0 {
		of = " of " + Count(b.total)
	}
	each := Count(int(rate))
	if rate < 10 {
		each = fmt.Sprintf("%.1f", rate) // what takes long goes slowly
	}
	var left string
	switch {
	case last:
		left = fmt.Sprintf(", %.1f s", took.Seconds())
	case b.total > b.done && rate > 0:
		left = fmt.Sprintf(", about %.0f s left", float64(b.total-b.done)/rate)
	}
	_, _ = fmt.Fprintf(b.p.w, "%s: %s%s %s (%s/s%s)\n", b.label, Count(b.done), of, b.unit, each, left)
}
