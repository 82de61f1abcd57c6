package projections

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/billonce/billonce/domain"
)

// Order is the direction of a list. Each list has one total order.
type Order string

// The directions; the zero Order is ascending.
const (
	Ascending  Order = "asc"
	Descending Order = "desc"
)

// Limits of a page.
const (
	DefaultLimit = 50
	MaxLimit     = 500
)

// Page asks for a part of a list.
type Page struct {
	Cursor string // next_cursor of the page before; empty: from the beginning
	Limit  int    // 1 to MaxLimit; 0: DefaultLimit
	Order  Order
}

// List is a page of a list.
type List[T any] struct {
	Items []T `json:"items"`
	// NextCursor continues behind the last item; empty: there is nothing more.
	NextCursor string `json:"next_cursor,omitempty"`
	AsOf       AsOf   `json:"as_of"`
}

// keyset is a validated Page of one list: where it begins and which way it goes.
type keyset struct {
	after   []string // the key of the last item seen; nil: from the beginning
	limit   int
	compare string // SQL, one of two constants
	order   string // SQL, one of two constants
	filter  string // what the cursors of this list, filter and order have in common
}

// keyset validates p for a list with a key of some parts. Its errors are
// domain refusals that name limit, order or cursor.
func (p Page) keyset(parts int, list string, filters ...string) (keyset, error) {
	k := keyset{limit: p.Limit, compare: ">", order: "ASC"}
	switch p.Order {
	case "", Ascending:
	case Descending:
		k.compare, k.order = "<", "DESC"
	default:
		return k, domain.InvalidField("order", "must be asc or desc")
	}
	if k.limit == 0 {
		k.limit = DefaultLimit
	}
	if k.limit < 1 || k.limit > MaxLimit {
		return k, domain.InvalidField("limit", "must be 1 to %d", MaxLimit)
	}
	sum := sha256.Sum256([]byte(list + "\n" + k.order + "\n" + strings.Join(filters, "\n")))
	k.filter = hex.EncodeToString(sum[:6])
	if p.Cursor == "" {
		return k, nil
	}
	var ok bool
	if k.after, ok = readCursor(p.Cursor, k.filter); !ok || len(k.after) != parts {
		return k, badCursor()
	}
	return k, nil
}

func badCursor() error {
	return domain.InvalidField("cursor", "is not a cursor of this list with these filters and this order; begin again without one")
}

// cursor is what a cursor holds. It is no secret and carries no rights: a
// forged one begins the same list at another place, nothing more.
type cursor struct {
	Version int      `json:"v"`
	Filter  string   `json:"f"`
	After   []string `json:"a"`
}

const (
	cursorVersion = 1
	cursorMost    = 4096 // bytes of a cursor that is worth reading
)

// next spells the cursor behind an item.
func (k keyset) next(key ...string) string {
	text, err := json.Marshal(cursor{cursorVersion, k.filter, key})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func readCursor(s, filter string) (after []string, ok bool) {
	if len(s) > cursorMost {
		return nil, false
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, false
	}
	var c cursor
	if err := json.Unmarshal(text, &c); err != nil || c.Version != cursorVersion || c.Filter != filter {
		return nil, false
	}
	return c.After, true
}

// cut takes the item that was fetched only to see whether there is more.
func cut[R any](rows []R, limit int) (page []R, more bool) {
	if len(rows) > limit {
		return rows[:limit], true
	}
	return rows, false
}
