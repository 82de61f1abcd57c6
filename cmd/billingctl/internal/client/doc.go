// Package client speaks billingd's HTTP API and the admin API of the spend
// proxy: it carries the token, turns problem details into errors, and streams
// batches of commands.
package client
