package eventstore

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/billonce/billonce/domain"
)

// Partitions is how many partitions the log has, for ever: the hash below is
// frozen into every row.
const Partitions = 64

// lockClass is the first half of the advisory lock that orders a partition's
// appends; the trigger in migrations/0001_log.sql takes the same one.
const lockClass = 7310

// PartitionOf is the partition of a sequence key (a customer id): FNV-1a,
// 32 bit, modulo 64. It is computed here and nowhere else.
func PartitionOf(sequenceKey string) int16 {
	h := uint32(2166136261)
	for i := range len(sequenceKey) {
		h = (h ^ uint32(sequenceKey[i])) * 16777619
	}
	return int16(h % Partitions)
}

// PartitionOfStream is the partition that all events of stream are in.
func PartitionOfStream(stream domain.StreamID) int16 { return PartitionOf(stream.SequenceKey()) }

// Place is a place in the log. Places of one partition are ordered by Position.
type Place struct {
	Partition int16
	Position  int64
}

// String spells the place as users see it: 17-40213. No place is "".
func (p Place) String() string {
	if p.Position == 0 {
		return ""
	}
	return strconv.Itoa(int(p.Partition)) + "-" + strconv.FormatInt(p.Position, 10)
}

// MarshalText spells the place.
func (p Place) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (p *Place) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		*p = Place{}
		return nil
	}
	*p, err = ParsePlace(string(text))
	return err
}

// ParsePlace reads 17-40213. The error is an invalid field after_position.
func ParsePlace(s string) (Place, error) {
	partition, position, ok := strings.Cut(s, "-")
	p, err1 := strconv.ParseUint(partition, 10, 8)
	n, err2 := strconv.ParseUint(position, 10, 63)
	if !ok || err1 != nil || err2 != nil || p >= Partitions || n == 0 || fmt.Sprintf("%d-%d", p, n) != s {
		return Place{}, domain.InvalidField("after_position", "must be a place in the log such as 17-40213")
	}
	return Place{int16(p), int64(n)}, nil
}
