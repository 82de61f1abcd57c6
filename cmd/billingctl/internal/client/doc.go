// Package client speaks billingd's HTTP API: it carries the token, turns
// problem details into errors, and streams batches of commands.
package client
