// Package vault speaks to the spend proxy's admin API, for the service: it
// gets the vault keys of runs, tells the proxy what runs are expected to take,
// and reads what the proxy decided. It moves no money: that is what the keys it
// gets are for.
//
// [Client] is the one type. Secrets go from the answer to the caller and stand in
// no error, no log and no other value.
package vault
