// Command stripesim is a stand-in for Stripe, for tests, demonstrations and fault
// injection. It speaks the part of Stripe's API with which a service takes money
// off-session, keeps Stripe's promises about idempotency keys, loses answers when
// asked to, and keeps a ledger that tells what really happened. Package
// [github.com/billonce/billonce/cmd/stripesim/sim] is the stand-in itself: what
// it does, every fault it knows, and everything it does otherwise than Stripe.
//
// It serves two listeners: Stripe's API, and a control API (clock, faults,
// ledger, …) that a service under test has no business with.
//
//	flag               environment                 default
//	--listen           STRIPESIM_LISTEN            127.0.0.1:12121
//	--control-listen   STRIPESIM_CONTROL_LISTEN    127.0.0.1:12122
//	                   STRIPESIM_CONTROL_TOKEN     none: control is open, and must listen on loopback
//	--data             STRIPESIM_DATA              none: in memory
//	--key-retention    STRIPESIM_KEY_RETENTION     24h
//	--prune            STRIPESIM_PRUNE             exact (or late, random)
//	--search-lag       STRIPESIM_SEARCH_LAG        1m
//	--rate-limit       STRIPESIM_RATE_LIMIT        0: none; requests a second
//	--account          STRIPESIM_ACCOUNT           the journal's, else acct_1SimBillonce00
//	--api-keys         STRIPESIM_API_KEYS          none: every sk_test_ and rk_test_ key
//	--clock            STRIPESIM_CLOCK             the machine's; a time to start at, RFC 3339
//	--prune-seed       STRIPESIM_PRUNE_SEED        0; of the prune mode random
//	--webhook-url      STRIPESIM_WEBHOOK_URL       none: no webhooks
//	                   STRIPESIM_WEBHOOK_SECRET    none; needed with the URL; two, separated by a comma, while rolling
//	--port-file        STRIPESIM_PORT_FILE         none
//
// A port of 0 is chosen by the system. The addresses are printed on standard
// output as one JSON line, and written to the port file, if one is named, as
// {"api":"http://…","control":"http://…","pid":…}. The file appears whole or not
// at all, when both listeners accept connections, and goes away at the end.
//
// A token that is set but blank is a fault, not an open door. README.md beside
// this file lists every route, control call, fault and known deviation.
//
// Exit status: 0 after SIGINT or SIGTERM, 1 when it could not run or its journal
// could not be written, 2 for bad settings, all of which are listed at once.
package main
