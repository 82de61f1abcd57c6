// Command spendproxy stands between programs and Stripe. It alone holds the
// Stripe key; a program holds a vault key (vk_…), which says what it may do, for
// which bills, and how much it may spend. It speaks Stripe's API, so that any
// SDK works with it by changing base URL and key.
//
//	flag                environment                  default
//	--listen            SPENDPROXY_LISTEN            127.0.0.1:8081
//	--admin-listen      SPENDPROXY_ADMIN_LISTEN      none: /admin/v1 of the former
//	--port-file         SPENDPROXY_PORT_FILE         none
//	--upstream          SPENDPROXY_UPSTREAM          https://api.stripe.com
//	--timeout           SPENDPROXY_TIMEOUT           80s: of a call to Stripe; longer than the callers' own
//	--db-pool           SPENDPROXY_DB_POOL           16 connections
//	--clock-url         SPENDPROXY_CLOCK_URL         none: business time is the database's clock
//	--idle-connections  SPENDPROXY_IDLE_CONNECTIONS  1000 with nothing asked; beyond it the oldest is closed
//	--audit-keep        SPENDPROXY_AUDIT_KEEP        none: the audit is kept for ever
//	--log-level         SPENDPROXY_LOG_LEVEL         info
//	--shutdown-grace    SPENDPROXY_SHUTDOWN_GRACE    90s
//	                    SPENDPROXY_STRIPE_KEY        needed: a restricted key of Stripe
//	                    SPENDPROXY_DATABASE_URL      needed: PostgreSQL, in production one of its own
//	                    SPENDPROXY_ADMIN_TOKEN       none: the admin API is off for people
//	                    SPENDPROXY_SERVICE_TOKEN     none: the admin API is off for billingd
//
// Secrets come by environment alone. Everything that is wrong with the settings
// is listed at once, without its value, and the status is 2; a port of 0 is
// chosen by the system, and the port file says which:
// {"api":"http://…","admin":"http://…","pid":…}.
//
// The listener serves Stripe's API under /v1, the admin API under /admin/v1
// (unless it has a listener of its own), and /healthz, /readyz (is the ledger's
// database there) and /metrics.
//
//	internal/policy   what a vault key may have done: pure functions
//	internal/ledger   caps, bills and answers, in PostgreSQL
//	internal/proxy    the way from a caller to Stripe and back
//	internal/admin    vault keys, manifests, audit, books
//
// Any number of proxies may share one database. Exit status: 0 after SIGINT or
// SIGTERM, 1 when it could not run, 2 for bad settings.
package main
