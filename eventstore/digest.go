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
	h := sha256.New()
	var n [8]byte
	field := func(b []byte) {
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	number := func(v uint64) {
		binary.BigEndian.PutUint64(n[:], v)
		h.Write(n[:])
	}
	field(previous)
	field([]byte(stream))
	number(uint64(version))
	field([]byte(name))
	number(uint64(schema))
	field(payload)
	field(metadata)
	return h.Sum(nil)
}

// ChainedTo reports whether r follows the event whose digest is previous,
// unchanged since it was written.
func (r Recorded) ChainedTo(previous []byte) bool {
	return bytes.Equal(r.Digest, digest(previous, string(r.Stream), r.Version, r.Type, r.SchemaVersion, r.Payload, r.Metadata))
}
