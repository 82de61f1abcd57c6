package access_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
)

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func TestHolder(t *testing.T) {
	t.Parallel()
	tokens, err := access.Parse("ci:read+dispatch:" + hashOf("one") + ",ops.2:operate:" + hashOf("two"))
	if err != nil {
		t.Fatal(err)
	}
	for presented, want := range map[string]string{"one": "ci", "two": "ops.2"} {
		c, ok := tokens.Holder(presented)
		if !ok || c.Name != want {
			t.Errorf("%s is held by %q, %v", presented, c.Name, ok)
		}
		for _, s := range []access.Scope{access.Read, access.Dispatch, access.Operate} {
			if may := c.May(s); may != ((s == access.Operate) == (want == "ops.2")) {
				t.Errorf("%s may %s: %v", want, s, may)
			}
		}
	}
	for _, presented := range []string{"", " ", "null", "one ", "ONE", hashOf("one")} {
		if c, ok := tokens.Holder(presented); ok {
			t.Errorf("%q passes as %q", presented, c.Name)
		}
	}
	if _, ok := tokens.Everybody(); ok || tokens.Open() {
		t.Error("with tokens it is open")
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	var none access.Tokens
	c, ok := none.Everybody()
	if !ok || !none.Open() || !c.May(access.Read) || !c.May(access.Dispatch) || c.May(access.Operate) {
		t.Errorf("without tokens everybody is %+v, %v", c, ok)
	}
	if _, ok := none.Holder(""); ok {
		t.Error("an empty token is known")
	}
	if new(access.Caller).May(access.Read) {
		t.Error("nobody may read")
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	good := "ci:read:" + hashOf("one")
	for _, list := range []string{
		"", " ", ",", good + ",", "," + good, good + " ", " " + good, "ci", "ci:read", "ci:read:", "ci::" + hashOf("one"), ":read:" + hashOf("one"),
		"ci:write:" + hashOf("one"), "ci:read+:" + hashOf("one"), "ci:read+read:" + hashOf("one"), "ci:READ:" + hashOf("one"), "ci:read:one",
		"ci:read:" + strings.ToUpper(hashOf("one")), "ci:read:" + hashOf("one")[:62], "ci:read:" + hashOf(""), "ci:read:" + hashOf("\n"), "local:read:" + hashOf("one"),
		"c i:read:" + hashOf("one"), good + "," + good, good + ",ci:read:" + hashOf("two"), good + ",other:read:" + hashOf("one"), good + ":x",
	} {
		tokens, err := access.Parse(list)
		if err == nil {
			t.Errorf("%q is accepted", list)
		}
		if _, ok := tokens.Holder("one"); ok {
			t.Errorf("%q is refused, and lets a token in", list)
		}
	}
	_, err := access.Parse("secret:write:hunter2,b:read:x")
	if lines := strings.Count(err.Error(), "\n") + 1; lines != 2 || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %d faults: %v", lines, err)
	}
}
