// Package migrations holds the database's schema as SQL, in order, and applies it.
//
// Every table the service owns is created here, with what each column is for
// and the checks that hold it to that. A landed file is never edited: a change
// is a new file.
//
// Any number of replicas may call [Up] at once, on an empty database or an old
// one: an advisory lock lets one of them work and the others wait, for a
// bounded time.
package migrations
