// Command billingctl is the operator's tool: it runs the demo, dispatches
// commands, imports customers, follows the log, and looks after processors,
// dead letters and read models, and after the spend proxy's vault keys.
//
// It reaches billingd over HTTP (--url or BILLINGCTL_URL, with the token in
// BILLINGCTL_TOKEN). What changes how the service itself works (migrate,
// replay, processors pause, resume and reset, dead-letters retry and skip) or
// reads all of it (verify, events export, events import) goes to the database
// that DATABASE_URL names; billingd may run meanwhile, and every change is
// written down with who made it and why. vault-keys goes to the spend proxy's
// admin API (--admin-url or SPENDPROXY_ADMIN_URL, with the admin token in
// SPENDPROXY_ADMIN_TOKEN).
//
// Secrets come by environment alone, because a command line is readable by
// everyone on the machine.
//
// Commands that check something end with one line for scripts, such as
//
//	demo: customers=1000 charged=1000 twice=0 missing=0 books=equal
//
// Exit status:
//
//	0  it worked
//	1  it failed, was refused or interrupted, or a figure is wrong
//	2  the command line or the configuration is wrong, or a command is not
//	   available in this version; nothing was done
package main
