// Package config reads the settings of billingd from its environment and its
// command line, and checks all of them at once: a service that starts has been
// told everything that is wrong, not the first thing.
//
// A setting that is set but blank is a fault, never a default: a deployment
// whose DATABASE_URL came out empty must not begin a new life on an embedded
// database. What is wrong is said without the value, since a secret may have
// been put into the wrong place.
//
// Secrets (DATABASE_URL, STRIPE_API_KEY, STRIPE_REFUND_KEY, BILLING_PROXY_TOKEN,
// STRIPE_WEBHOOK_SECRET) and BILLING_TOKENS come by environment alone, because a command line is readable
// by everyone on the machine.
package config
