package ledger

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// A secret is vk_<id of its key>_<random>.
const (
	secretPrefix = "vk_"
	idBytes      = 8
	randomBytes  = 32
)

func newID() string { return hex.EncodeToString(randomOf(idBytes)) }

func newSecret(id string) string {
	return secretPrefix + id + "_" + hex.EncodeToString(randomOf(randomBytes))
}

func randomOf(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // which never fails (https://pkg.go.dev/crypto/rand#Read)
	return b
}

func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// idIn is the key's id in a secret, empty if it cannot be one.
func idIn(secret string) string {
	rest, ok := strings.CutPrefix(secret, secretPrefix)
	id, random, found := strings.Cut(rest, "_")
	if !ok || !found || len(id) != 2*idBytes || len(random) != 2*randomBytes {
		return ""
	}
	if _, err := hex.DecodeString(id + random); err != nil {
		return ""
	}
	return id
}

// lookup asks for the key of an id, and its secrets' hashes.
type lookup struct {
	id    string
	found *VaultKey
	now   time.Time
	held  []heldSecret
}

type heldSecret struct {
	hash    []byte
	retires time.Time
}

// Authenticate finds the key of a secret: its grant, not its caps. It reads the
// database each time, by one query that many callers share and that begins after
// each of them came, so that a revocation holds from the next request on. ok is
// false for a secret that is unknown, retired, revoked or expired; why says which.
func (l *Ledger) Authenticate(ctx context.Context, secret string) (key VaultKey, ok bool, why string, err error) {
	const unknown = "the vault key is not known"
	id := idIn(secret)
	if id == "" {
		return VaultKey{}, false, "this is not a vault key", nil
	}
	q := &lookup{id: id}
	if err := l.lookups.do(ctx, q); err != nil {
		return VaultKey{}, false, "", fmt.Errorf("authenticate: %w", err)
	}
	if q.found == nil {
		return VaultKey{}, false, unknown, nil
	}
	hash := hashOf(secret)
	known, live := 0, 0
	for _, h := range q.held {
		same := subtle.ConstantTimeCompare(hash, h.hash)
		known |= same
		if h.retires.IsZero() || q.now.Before(h.retires) {
			live |= same
		}
	}
	k := *q.found
	switch {
	case known == 0:
		return VaultKey{}, false, unknown, nil
	case !k.RevokedAt.IsZero():
		return k, false, "the vault key is revoked", nil
	case live == 0:
		return k, false, "this secret of the vault key is retired", nil
	case !k.Grant.Expires.IsZero() && !q.now.Before(k.Grant.Expires):
		return k, false, "the vault key has expired", nil
	}
	return k, true, "", nil
}

const keyColumns = `id, label, environment, run, rules, mode, cap_window, manifest, count_cap, expires_at, created_at, created_by, revoked_at, revoked_reason`

func scanKey(row pgx.Row, more ...any) (VaultKey, error) {
	var k VaultKey
	var rules []string
	var expires, revoked *time.Time
	err := row.Scan(append([]any{&k.ID, &k.Label, &k.Environment, &k.Run, &rules, &k.Grant.Mode, &k.Grant.Window, &k.Grant.Manifest, &k.CountCap,
		&expires, &k.CreatedAt, &k.CreatedBy, &revoked, &k.Reason}, more...)...)
	for _, r := range rules {
		k.Grant.Rules = append(k.Grant.Rules, policy.Rule(r))
	}
	k.CreatedAt, k.Grant.Expires, k.RevokedAt = k.CreatedAt.UTC(), timeOf(expires), timeOf(revoked)
	return k, err
}

// lookUp answers a round of lookups by one query.
func (l *Ledger) lookUp(round []*turn[*lookup], pass func()) {
	pass()
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	byID := map[string]*lookup{}
	var ids []string
	for _, t := range round {
		if byID[t.of.id] == nil {
			byID[t.of.id] = &lookup{}
			ids = append(ids, t.of.id)
		}
	}
	now, err := l.now(ctx)
	if err == nil {
		err = l.readKeys(ctx, ids, byID, now)
	}
	for _, t := range round {
		found := byID[t.of.id]
		t.of.found, t.of.held, t.of.now, t.err = found.found, found.held, found.now, err
	}
}

func (l *Ledger) readKeys(ctx context.Context, ids []string, byID map[string]*lookup, now time.Time) error {
	rows, err := l.pool.Query(ctx, `SELECT `+keyColumns+`, s.hash, s.retires_at, clock_timestamp()
		FROM spendproxy.vault_keys k JOIN LATERAL (SELECT hash, retires_at FROM spendproxy.secrets WHERE vault_key = k.id) s ON true
		WHERE k.id = ANY($1)`, ids)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var h heldSecret
		var retires *time.Time
		var clock time.Time
		k, err := scanKey(rows, &h.hash, &retires, &clock)
		if err != nil {
			return err
		}
		h.retires = timeOf(retires)
		q := byID[k.ID]
		if q.now = now; now.IsZero() {
			q.now = clock.UTC()
		}
		q.found, q.held = &k, append(q.held, h)
	}
	return rows.Err()
}

// glimpse asks which evidence of a read is news.
type glimpse struct {
	seen []policy.Evidence
	news []policy.Evidence
}

// glance answers a round of glimpses: evidence is no news if the object is known
// to be just so and nothing is open that it could settle.
func (l *Ledger) glance(round []*turn[*glimpse], pass func()) {
	pass()
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	w := newWanted()
	for _, t := range round {
		for i := range t.of.seen {
			w.evidence(&t.of.seen[i])
		}
	}
	p, err := l.newPage(ctx)
	if err == nil {
		b := &pgx.Batch{}
		b.Queue(plansSQL)
		p.queueObjects(b, list(w.objects))
		p.queueSubjects(b, w)
		if err = l.pool.SendBatch(ctx, b).Close(); err != nil {
			err = fmt.Errorf("read the books: %w", err)
		}
	}
	for _, t := range round {
		if t.err = err; err != nil {
			continue
		}
		for _, e := range t.of.seen {
			if e.Object != "" && p.isNews(e) {
				t.of.news = append(t.of.news, e)
			}
		}
	}
}

func (p *page) isNews(e policy.Evidence) bool {
	o := p.objects[e.Object]
	switch {
	case o == nil:
		if policy.ChargeID(e.Object) == "" || e.State != policy.Unpaid {
			return true
		}
	case !same(o.Evidence, e) && (final(e.State) || !final(o.State)), e.State == policy.Absent:
		return true
	case e.State == policy.Succeeded && len(e.Raw) > 0 && len(o.Raw) == 0 && o.answerKey == "":
		return true
	}
	for _, s := range p.subjects {
		concerns := s.intent != "" && (s.intent == e.Object || s.intent == e.Intent) || s.object == e.Object || !e.Bill.IsZero() && s.bill == e.Bill ||
			e.Key != "" && s.id == keySubject(e.Key)
		if concerns && s.open() {
			return true
		}
		if concerns && e.State == policy.Succeeded && s.state == stateReleased {
			return true
		}
	}
	return false
}
