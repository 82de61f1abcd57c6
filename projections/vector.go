package projections

import (
	"encoding/base64"
	"encoding/binary"

	"github.com/billonce/billonce/eventstore"
)

// vector is a place in each partition: what a reader of the whole log has
// seen. The zero vector is the log's beginning.
type vector [eventstore.Partitions]int64

// vectorVersion is the first byte of a vector's text form.
const vectorVersion = 1

// String is the compact, opaque form: base64url of a version byte, the highest
// position, and each partition's distance below it plus one (0: nothing seen).
func (v vector) String() string {
	high := v.max().Position
	b := binary.AppendUvarint([]byte{vectorVersion}, uint64(high))
	for _, n := range v {
		distance := uint64(0)
		if n > 0 {
			distance = uint64(high-n) + 1
		}
		b = binary.AppendUvarint(b, distance)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseVector reads what String wrote, and nothing else.
func parseVector(s string) (v vector, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) == 0 || b[0] != vectorVersion {
		return vector{}, false
	}
	b = b[1:]
	next := func() (n uint64) {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			ok = false
			return 0
		}
		b = b[size:]
		return n
	}
	ok = true
	high := next()
	for p := range v {
		if distance := next(); distance > 0 {
			v[p] = int64(high - distance + 1)
			ok = ok && distance <= high && v[p] > 0
		}
	}
	return v, ok && len(b) == 0
}

// max is the place with the highest position.
func (v vector) max() (high eventstore.Place) {
	for p, n := range v {
		if n > high.Position {
			high = eventstore.Place{Partition: int16(p), Position: n}
		}
	}
	return high
}
