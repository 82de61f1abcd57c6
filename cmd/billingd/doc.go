// Command billingd is the service: the HTTP API, the tracking processors, the
// due scanner and the collector, in one process. Any number of replicas may run
// on one database; they need no leader.
package main
