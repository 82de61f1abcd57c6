package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// An Idempotency-Key header is remembered per actor with the command and the
// body it came with. The log writes it with the facts; what is here asks
// before a dispatch, and remembers a header that came with a command which had
// been decided before, under another header or none.

// bodyDigest is a hash of what a body says: spaces, the order of its fields and
// how its letters are escaped do not matter. The body has been decoded, so it is
// a flat object of strings and integers, each field once.
func bodyDigest(command string, body []byte) []byte {
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		fields = nil
	}
	canonical, err := json.Marshal(fields) // sorted by name, spaces removed
	if err != nil || fields == nil {
		canonical = body
	}
	sum := sha256.Sum256(append([]byte(command+"\n"), canonical...))
	return sum[:]
}

// checkRequestKey refuses a header key that was used for something else. One
// that is known for the same is no obstacle: the command has a key of its own,
// which finds the old receipt.
func checkRequestKey(ctx context.Context, q eventstore.Querier, k *eventstore.RequestKey, command string) (known bool, err error) {
	var usedFor string
	var digest []byte
	err = q.QueryRow(ctx, `SELECT command, body_digest FROM request_keys WHERE actor = $1 AND key = $2`, k.Actor, string(k.Key)).Scan(&usedFor, &digest)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up the Idempotency-Key: %w", err)
	case usedFor != command || !bytes.Equal(digest, k.BodyDigest):
		return false, domain.ErrKeyReused.With("this Idempotency-Key was used before for another %s", usedFor)
	}
	return true, nil
}

// keepRequestKey remembers the header of a command that was decided before.
func keepRequestKey(ctx context.Context, q eventstore.Querier, k *eventstore.RequestKey, command string, commandKey domain.Key) error {
	tag, err := q.Exec(ctx, `INSERT INTO request_keys (actor, key, command, body_digest, command_key) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING`,
		k.Actor, string(k.Key), command, k.BodyDigest, string(commandKey))
	if err != nil {
		return fmt.Errorf("remember the Idempotency-Key: %w", err)
	}
	if tag.RowsAffected() == 0 { // somebody else's, or our own first try
		_, err = checkRequestKey(ctx, q, k, command)
	}
	return err
}
