// Package demo bills a month on real parts and then asks the other side, the
// Stripe stand-in, what it was charged.
//
// A demo starts an embedded PostgreSQL, stripesim, spendproxy and billingd as
// processes of their own on free ports, imports customers over HTTP, moves the
// stand-in's clock over the month's beginning, kills billingd and later the proxy
// with SIGKILL in the middle of charging, starts them again, and waits until the
// month is billed. Then it counts in the stand-in's ledger, not in the service's
// books: how many customers were charged, charged twice, not charged, and the
// sums per currency against what was owed. The service's own books and the
// proxy's, which has a database of its own, are compared with that afterwards:
// three figures a currency. At last every read model is rebuilt while commands
// are dispatched, which must not lead to a call, and everything is verified.
//
// # The kill
//
// Until the kill the stand-in answers confirms a little late, as Stripe does.
// So at the moment of the kill there are charges that Stripe has made and the
// service has not heard of: the case that a service without a memory of its own
// bills twice.
//
// # What it leaves behind
//
// Everything lies in a folder of the run's own, below a folder of the user's
// cache: the database, the journal of the stand-in, the logs. It goes away with
// the demo. After a failure the logs stay until the next demo; with Keep
// everything stays, and runs on, until it is stopped.
//
// Each process of a run holds a lock on a file of the run's folder, which the
// kernel drops with the process. So the next demo finds, ends and removes what
// a demo left behind that was itself killed, and never takes another process
// for its own because a number has come round.
package demo
