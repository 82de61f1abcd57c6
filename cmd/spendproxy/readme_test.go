package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// The Go program of the README runs, and prints what the README says, but for
// Stripe's ids.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile("(?s)\n## Go\n.*?```go\n(.*?)```\n.*?```\n(.*?)```\n").FindSubmatch(readme)
	if section == nil {
		t.Fatal("the README has no section Go with a program and its output")
	}
	folder := t.TempDir()
	source, program := filepath.Join(folder, "charge.go"), filepath.Join(folder, "charge")
	if err := os.WriteFile(source, section[1], 0o600); err != nil {
		t.Fatal(err)
	}
	// The module's own stripe-go is the one that the README names.
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("the program does not compile: %v\n%s", err, out)
	}
	r := newRig(t)
	secret, _ := r.issue(ledger.Issue{
		Label: "support agent", CountCap: 20, Caps: []ledger.CapTerms{{Currency: "usd", Minor: 60000, Ceiling: 20000}},
		Grant: policy.Grant{Rules: []policy.Rule{policy.IntentsCreate, policy.IntentsConfirm, policy.IntentsRead}, Window: policy.Day},
	})
	var got, want []string
	for line := range strings.Lines(string(section[2])) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "$ export ") {
			continue
		}
		want = append(want, line)
		args, ok := strings.CutPrefix(line, "$ go run charge.go ")
		if !ok {
			continue
		}
		c := exec.CommandContext(t.Context(), program, strings.Fields(args)...)
		c.Env = append(os.Environ(), "STRIPE_API_BASE="+r.url, "STRIPE_API_KEY="+secret)
		out, err := c.CombinedOutput()
		if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
			t.Fatal(err)
		}
		got = append(got, line, strings.TrimSpace(string(out)))
	}
	if got, want := withoutIDs(got), withoutIDs(want); got != want || strings.Count(want, "\n") != 11 {
		t.Errorf("it prints\n%s\nand the README says\n%s", got, want)
	}
	if _, charges := r.taken(); charges != 3 {
		t.Errorf("Stripe took %d charges", charges)
	}
	// Stripe has seen what passed, and each refusal came once to us.
	if n := strings.Count(r.log.String(), `"msg":"call refused"`); n != 2 {
		t.Errorf("%d refusals: the library tries again", n)
	}
}

// withoutIDs numbers Stripe's ids in their order, so that equal ones stay equal.
func withoutIDs(lines []string) string {
	seen := map[string]string{}
	return regexp.MustCompile(`pi_\w+`).ReplaceAllStringFunc(strings.Join(lines, "\n"), func(id string) string {
		if seen[id] == "" {
			seen[id] = "pi_" + strings.Repeat("i", len(seen)+1)
		}
		return seen[id]
	})
}

// What the README's tables name exists, and what exists is in the tables.
func TestReadmeTables(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []policy.Code{
		policy.CodeCapExceeded, policy.CodeCountExceeded, policy.CodeCeiling, policy.CodeRule, policy.CodeParameter, policy.CodeObligation, policy.CodeMismatch,
		policy.CodeKey, policy.CodePaid, policy.CodeInFlight, policy.CodeCurrency, policy.CodeTarget, policy.CodeRequest, policy.CodeNoKey, policy.CodeReused,
		policy.CodeVaultKey, policy.CodeStore, policy.CodeUpstream, policy.CodeUnsent,
	} {
		if !strings.Contains(string(readme), "`"+string(name)+"`") {
			t.Errorf("the README does not say what %s means", name)
		}
	}
	for _, rule := range append(freeRules, policy.CustomersRead, policy.MethodsRead) {
		if !strings.Contains(string(readme), "`"+string(rule)+"`") {
			t.Errorf("the README does not say what %s permits", rule)
		}
	}
}
