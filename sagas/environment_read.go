package sagas

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// found is one reading of the database's identity, and what was written there.
type found struct {
	system   string
	oid      int64
	timeline int64 // 0 while the server is a standby

	written      bool // there is a row
	name         string
	account      string
	wroteSystem  string
	wroteOID     int64
	wroteTime    int64
	epoch        int64
	former       int64
	paused       bool
	reason       string
	adoptedAt    *time.Time
	adoptedBy    string
	adoptedWhy   string
	remembered   fact   // what this process had seen …
	rememberedIs string // … and what is at its position
	newest       fact
}

// readEnvironment is one statement, so that all of it is true at one moment.
const readEnvironment = `
	SELECT (SELECT system_identifier::text FROM pg_control_system()),
		(SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
		CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END,
		e.one IS NOT NULL, coalesce(e.name, ''), coalesce(e.stripe_account, ''), coalesce(e.system_identifier, ''),
		coalesce(e.database_oid, 0), coalesce(e.timeline, 0), coalesce(e.epoch, 0), coalesce(e.former_epoch, 0),
		coalesce(e.paused, false), coalesce(e.reason, ''), e.adopted_at, coalesce(e.adopted_by, ''), coalesce(e.adopted_reason, ''),
		coalesce((SELECT event_id::text FROM events WHERE position = $1), ''),
		coalesce(n.position, 0), coalesce(n.event_id::text, '')
	FROM (SELECT 1) AS nothing
	LEFT JOIN environment e ON true
	LEFT JOIN (SELECT position, event_id FROM events ORDER BY position DESC LIMIT 1) AS n ON true`

// remembered is the newest fact that this process has seen.
func (e *Environment) remembered() fact {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.newest
}

func (e *Environment) scan(row pgx.Row, remembered fact) (f found, err error) {
	f.remembered = remembered
	err = row.Scan(&f.system, &f.oid, &f.timeline, &f.written, &f.name, &f.account, &f.wroteSystem, &f.wroteOID, &f.wroteTime,
		&f.epoch, &f.former, &f.paused, &f.reason, &f.adoptedAt, &f.adoptedBy, &f.adoptedWhy, &f.rememberedIs, &f.newest.position, &f.newest.id)
	return f, err
}

// moved says in which way the database is another one than it was, or "".
// Epoch is the one that this process knows it by; 0: none yet.
func (f found) moved(epoch int64) string {
	switch {
	case !f.written:
		if epoch != 0 {
			return "the database has lost what was written about it"
		}
		return ""
	case epoch != 0 && f.epoch != epoch && f.former != epoch:
		return "the database is not the one that this process has been working on"
	case f.system != f.wroteSystem:
		return fmt.Sprintf("the data lie on another server: system identifier %s, was %s", f.system, f.wroteSystem)
	case f.oid != f.wroteOID:
		return fmt.Sprintf("the data lie in another database of the server: number %d, was %d", f.oid, f.wroteOID)
	case f.timeline != 0 && f.timeline != f.wroteTime:
		return fmt.Sprintf("the server was promoted or recovered: timeline %d, was %d", f.timeline, f.wroteTime)
	case f.epoch == epoch && f.remembered.position != 0 && f.rememberedIs != f.remembered.id:
		return fmt.Sprintf("the log has gone back: it no longer holds the fact that was at position %d", f.remembered.position)
	}
	return ""
}

// elsewhere says in which way the database belongs to another environment.
func (f found) elsewhere(name, account string) string {
	switch {
	case f.name != name:
		return fmt.Sprintf("the database belongs to the environment %q, and BILLING_ENVIRONMENT is %q", f.name, name)
	case f.account != "" && account != "" && f.account != account:
		return fmt.Sprintf("the database belongs to the Stripe account %s, and the key to %s", f.account, account)
	}
	return ""
}

// queue asks, in a pipeline, whether the database is still the same one.
func (e *Environment) queue(p *pgx.Batch) (remembered fact) {
	remembered = e.remembered()
	p.Queue(readEnvironment, remembered.position)
	return remembered
}

// confirm reads what queue has asked. Unless everything is as this process
// knows it, the error is errNotOurs.
func (e *Environment) confirm(row pgx.Row, remembered fact) error {
	f, err := e.scan(row, remembered)
	if err != nil {
		return fmt.Errorf("read the database's identity: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !f.written || f.epoch != e.epoch || f.paused || f.moved(e.epoch) != "" || f.elsewhere(e.name, e.own) != "" {
		return errNotOurs
	}
	e.sees(f.newest)
	return nil
}

// sees remembers the newest fact. The caller holds mu.
func (e *Environment) sees(newest fact) {
	if newest.position > e.newest.position {
		e.newest = newest
	}
}
