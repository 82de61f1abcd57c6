package eventstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
)

// digest chains an event to its predecessor: SHA-256 over the predecessor's
// digest (none for version 1) and the event's stream, version, type, schema
// version, payload and metadata, each with its length in front.
func digest(previous []byte, stream string, version int, name string, schema int16, payload, metadata []byte) []byte {
	const lengths = 7 * 8
	text := make([]byte, 0, lengths+len(previous)+len(stream)+len(name)+len(payload)+len(metadata))
	field := func(b []byte) {
		text = binary.BigEndian.AppendUint64(text, uint64(len(b)))
		text = append(text, b...)
	}
	field(previous)
	field([]byte(stream))
	text = binary.BigEndian.AppendUint64(text, uint64(version))
	field([]byte(name))
	text = binary.BigEndian.AppendUint64(text, uint64(schema))
	field(payload)
	field(metadata)
	sum := sha256.Sum256(text)
	return sum[:]
}

// ChainedTo reports whether r follows the event whose digest is previous,
// unchanged since it was written.
func (r Recorded) ChainedTo(previous []byte) bool {
	return bytes.Equal(r.Digest, digest(previous, string(r.Stream), r.Version, r.Type, r.SchemaVersion, r.Payload, r.Metadata))
}
