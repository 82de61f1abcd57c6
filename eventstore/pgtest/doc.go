// Package pgtest gives each test a real PostgreSQL database of its own.
//
//	pool := pgtest.Pool(t)    // migrated, at most 10 connections
//	dsn := pgtest.DSN(t)      // the same database, for what opens its own connections
//	dsn := pgtest.Empty(t)    // another one, without a schema
//	proxy := pgtest.NewProxy(t, dsn)
//
// Tests may run in parallel. A database is cloned from a template that was
// migrated once for its set of migrations, and dropped when the test ends. Where
// there is no server the test fails, and says how to get one; it never skips.
//
// # The server
//
// TEST_DATABASE_URL names one, whose role must be allowed to create databases.
// Otherwise a server of package pglocal is started, or found running, in the
// user's cache folder (PGTEST_DIR names another). All test programs of a user
// share it, and a watcher, the test program run once more, stops it some seconds
// after the last of them has ended, however it ended.
//
// That server is volatile: it does not wait for the disk. What tests kill is
// clients, and the death of a client or of the server loses nothing then; only a
// power cut would. Benchmarks get a second server, durable as the service's own.
//
// # What a killed test leaves behind
//
// Each test program holds an advisory lock with its databases' prefix, and one
// for its template; the server drops them with the connection. The next test
// program drops the databases that nobody holds.
package pgtest
