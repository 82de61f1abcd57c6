// Package sagas turns facts into intentions and intentions into money: the
// billing saga, the schedule of dues, the pre-flight rows, and the collector,
// the one component that calls Stripe to take money.
//
// # The life of one bill
//
//	due scanner ──declare-billing-due──▶ MonthlyBillingDue
//	saga "billing" ──charge-billing──▶ ChargeRequested         (HTTP and CLI send the same command)
//	processor "preflight" ──▶ billing_records: reserved, every parameter frozen
//	collector: claim      one short transaction: partitions' locks ascending, rows SKIP LOCKED,
//	                      start-attempt decided on fresh state ──▶ ChargeAttemptStarted; row: sending, lease, fence
//	           create     the PaymentIntent, unconfirmed; its id is committed, write-once ──▶ ChargeIntentCommitted
//	           confirm    exactly that id, off-session, under the charge key
//	           record     the outcome: fact and row in one transaction
//
// No transaction is open during a call to Stripe. Claims, intent ids and
// outcomes of many bills share transactions ([Collector] has one book that
// writes what is waiting, together).
//
// # Three answers, never two
//
// A charge is charged, not charged, or unknown. An unknown is decided by one
// read of the committed intent; only what that read leaves open is sent again,
// and only where it is safe: under the same key within 23 hours of the first
// send, or under the next "-again" key once the quiet period is over on the
// business clock and on the database's. One intent succeeds once, ever, so a
// confirm of the committed intent can never take a bill twice.
//
// # What if this is the last line that runs?
//
//	lights out …                               what is left                     what happens next
//	saga transaction rolls back                neither facts, row nor token     the event is handled again, same keys
//	ChargeRequested recorded, no row           the processor is behind          the row is inserted on redelivery
//	row reserved, no call made                 reserved                         any collector claims it
//	claimed, nothing sent                      sending, a lease running out     claimed again: same key, same parameters
//	intent created, answer lost                sending, no intent id            created again: the same key gives the same intent
//	id committed, confirm's answer lost        sending or unknown, with id      one read decides, or the same confirm again
//	answer seen, outcome not recorded          sending, with id                 the same
//	paused past the lease, wakes up            the fence has moved on           its writes are refused and logged; a success is recorded
//	create answered by a 500                   reserved                         created again under the next key; no money moves by a create
//	confirm answered by a 500                  unknown, quiet for a day         reads until then; a success is found, else confirmed again
//	settled while the intent is open           closing                          cancelled at Stripe first, then settled; or paid, if it was
//	the log lost what Stripe has               a look is due                    what succeeded is adopted before anything is created
//	COMMIT's answer lost                       it is there, or it is not        read again by its key, or by the row
//	the database goes back in time             the newest fact seen is missing  paused; a look anew; what Stripe has becomes facts; adopted
//	a standby that was behind is promoted      the timeline is another one      the same
//	the data at Stripe are deleted             the look's place is gone         the look goes on by time
//	declined, and executed a day later         declined, read_again_at          read again after 24 hours; the success is recorded
//	a decline not decided about                its timer, or the fact before it decided by whichever replica is up
//	a retry due, its sender dies               its timer                        sent by another one: the row goes with its commit
//	a retry due, the attempt made by hand      a timer of a former attempt      refused, and dropped: the next decline plans anew
//
// The tests are in crash_test.go, resolve_test.go (one for each arm that
// decides an unknown), commit_test.go and environment_test.go.
//
// # Runs, and the spend proxy
//
// A run is everything under one period label. Its manifest is what it is
// expected to take, from subscriptions: [Manifest] keeps it, and the [Registrar]
// tells the proxy of it ([Vault]) before a bill is claimed. Money is taken by the
// run's own vault key ([RunKeys]: secrets in memory alone), whose cap follows the
// manifest. What the proxy refuses (a cap, a policy, a key that is revoked) is
// held, and the run pauses: a fact, an alarm and a metric, once a turn, whatever
// the number of bills, workers and replicas. What is left of the run is held too,
// each bill with the reason and without a call. Nobody is declined, nothing is
// dropped; a resumption lets all of it be claimed at once. What is in flight when
// a run pauses is finished: a bill that may have been sent is still read, and sent
// again under its key where that is safe, which the proxy lets pass.
//
//	the entry is not told yet              pending                      not claimed; the registrar tells it
//	told, and not kept as told             pending                      told again: repeats are harmless
//	key issued, its id not kept            no key of the run            issued again: the same key, one more secret
//	the proxy's admin API is away          pending, reserved            nothing is claimed that it does not know; told when it is back
//	the secret is rotated                  refused with a 401           another one is asked for, the call made once more
//	refused, the pause not recorded        held, the run goes on        the next refusal records it; its key is the turn's
//	paused, the table is behind            billing_runs says so later   this process holds back at once, others meet the refusal
//	resumed, refused by what came before   a refusal of an older turn   it changes nothing
//	the proxy does not take an entry       a finding, not claimed       loud, told again only when the entry changes
//
// # Which database is this?
//
// A guard that lives in the database goes back in time with it. So a collector
// knows its database by what no backup brings along, and by the newest fact it
// has seen, and asks for both in the transaction of every claim: see
// [Environment]. Claims carry an epoch that each process draws by chance, so
// that a fence counted twice, before and after a restore, is two fences.
//
// # Stripe's news, and the three books
//
// What Stripe tells by itself goes through the [Inbox]: stored before it is
// answered, applied in any order, by the same commands and keys as the
// collector's own outcomes, so that it does not matter who learns of something
// first. The [Reconciler] compares log, rows and Stripe's lists, catches up
// with events that were not delivered, repairs what Stripe proves and proposes
// the rest. Neither moves money, and neither waits for the other.
//
//	the event is stored, not applied           received                     applied by any replica
//	applied, the commit's answer lost          facts, row and inbox agree   or none of them, and it is applied again
//	told before its bill is known              deferred                     tried again for days; matched when its charge is met
//	never told                                 nothing                      the reconciler meets the charge, or the event in Stripe's list
//	a reconciliation's replica dies            running, no lock             another begins it anew; what was repaired stays so
//
// A finding that stays as it is at Stripe (a charge of the shop's own, a pair
// that is two sales) is dismissed by an operator, with a reason. It is kept, shown
// and counted apart, and not reported again; what is found of another object is.
//
// # What needs review, and how it ends
//
// A bill needs review if the evidence contradicts itself (Stripe does not know
// the committed intent, or it is not what was frozen) or has run out (a legacy
// charge that was sent, is not listed, and whose key may be forgotten). Its fact
// says why, with the evidence. Nothing is sent meanwhile, and no person's word
// makes a bill paid, or unpaid, or lets a charge leave: each way out ends with
// what Stripe shows.
//
//	it was charged, with our markers     the look, Stripe's news or a comparison of the books records it, by itself;
//	                                     markers may be added to the charge at Stripe
//	it was charged, without them         settle-billing, with the charge's id as the reference
//	what stood against it is repaired    release-billing: another start, which reads first. An intent goes on as any
//	                                     unknown does; a legacy charge past its window is not sent again
//	it is not to be collected any more   settle-billing or write-off-billing
//
// Settling and writing off close the bill at Stripe first: its intent is
// cancelled, or has succeeded and is recorded as paid instead. A legacy charge
// counts as never made once it is not listed and the quiet period is over. An
// intent that the account does not know can take no money there, so a bill that
// has needed review for that ends without a cancel; one that meets it only when
// it is closed needs review first. A success that turns up after all is recorded
// in any state, and a refund proposed where it is not owed.
//
// Business time and lease time are two clocks: see [Clock].
//
// What goes back has rows, a worker and a crash table of its own: see [Refunds].
package sagas
