package console

import (
	"bytes"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	t.Parallel()
	table := NewTable("currency", "owed#", "twice#")
	table.Row("jpy", "¥307825559", 0)
	table.Row("usd", "$12.00", 1234567)
	table.Row("two\nlines", "", -1000)
	var out bytes.Buffer
	if err := table.Write(&out, "  "); err != nil {
		t.Fatal(err)
	}
	want := `
  currency         owed      twice
  jpy        ¥307825559          0
  usd            $12.00  1,234,567
  two lines           -     -1,000
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -12345: "-12,345", 1234567890: "1,234,567,890"} {
		if got := Count(n); got != want {
			t.Errorf("Count(%d) is %s, not %s", n, got, want)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := JSON(&out, []byte("{\"b\":1,\"a\":[]}\n")); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"b\": 1,\n  \"a\": []\n}\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if err := JSON(&out, []byte("{")); err == nil {
		t.Error("half a document is printed")
	}
}

// Off a terminal progress is a line, not a bar.
func TestPlainProgress(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	bar := NewProgress(&out).Start("charging", "bills", 1000)
	bar.Set(400)
	bar.Add(700) // beyond the end
	bar.End()
	got := out.String()
	if strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "charging: 1,000 of 1,000 bills (") || strings.ContainsAny(got, "\r\x1b") {
		t.Errorf("got %q", got)
	}
}
