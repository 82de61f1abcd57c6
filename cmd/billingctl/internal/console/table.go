package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Table is rows under headings. Columns of numbers and amounts line up on the
// right.
type Table struct {
	headings []string
	right    []bool
	rows     [][]string
}

// NewTable makes a table. A heading that ends in # is of a column that lines up
// on the right; the mark is not shown.
func NewTable(headings ...string) *Table {
	t := &Table{headings: make([]string, len(headings)), right: make([]bool, len(headings))}
	for i, h := range headings {
		t.headings[i], t.right[i] = strings.CutSuffix(h, "#")
	}
	return t
}

// Row adds a row: a cell for each heading. Empty cells are shown as a dash.
func (t *Table) Row(cells ...any) {
	row := make([]string, len(t.headings))
	for i := range row {
		if i < len(cells) {
			row[i] = text(cells[i])
		}
		if row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// Empty reports whether the table has no rows.
func (t *Table) Empty() bool { return len(t.rows) == 0 }

func text(cell any) string {
	switch v := cell.(type) {
	case int:
		return Count(v)
	case int64:
		return Count(int(v))
	case bool:
		if v {
			return "yes"
		}
		return "no"
	}
	// A cell is one line, whatever somebody wrote into it.
	return strings.Join(strings.Fields(fmt.Sprint(cell)), " ")
}

// Write prints the table, each line after indent.
func (t *Table) Write(w io.Writer, indent string) error {
	widths := make([]int, len(t.headings))
	for _, row := range append([][]string{t.headings}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range append([][]string{t.headings}, t.rows...) {
		var line strings.Builder
		line.WriteString(indent)
		for i, cell := range row {
			if i > 0 {
				line.WriteString("  ")
			}
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.right[i] {
				line.WriteString(space + cell)
			} else {
				line.WriteString(cell + space)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Count spells a number with a comma between thousands.
func Count(n int) string {
	digits := strconv.Itoa(n)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// JSON prints a document as it came, indented.
func JSON(w io.Writer, document json.RawMessage) error {
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSpace(document), "", "  "); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}
