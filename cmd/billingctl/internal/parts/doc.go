// Package parts starts the parts of a whole Billonce as processes and reaches
// them: what the demo and the selftest have in common.
//
// A [Folder] holds everything of one run and finds, ends and removes what a run
// left behind that was itself killed. A [Child] is a process in it. [StandIn] is
// the control side of the Stripe stand-in, and [Movement] a line of its ledger.
// [Await] and its like wait for conditions, and do not count the time in which
// the machine stood still.
package parts
