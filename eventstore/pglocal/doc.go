// Package pglocal runs a real PostgreSQL for a program that was given none.
//
// [Start] finds the server's binaries on the machine (14 or newer), makes a
// cluster under the caller's data directory the first time, starts it and
// returns when it answers. [Server.Stop] stops it cleanly.
//
//	DataDir/
//	  postgres.lock      held while a server is being started or stopped
//	  postgres/          mode 0700; a link when root keeps it elsewhere, see below
//	    cluster/         the data; "volatile" for one without durability
//	    password         mode 0600, the superuser's password
//	    server.log       what PostgreSQL says
//	    users            one shared lock for each process that uses the server
//	    watch            the lock of the process in [StopWhenIdle]
//
// # One server for a data directory
//
// Any number of processes may Start the same data directory: the first starts
// the server, the others use it, and the last to Stop stops it. Users are
// counted by file locks, which the kernel drops with the process that held
// them: whatever a kill -9 leaves running is found by the next Start, used, and
// stopped by the last Stop.
//
// # What if this is the last line that runs
//
//	during initdb         it works in a folder of its own that becomes the
//	                      cluster by one rename; the next Start sweeps it away
//	server starting       found by its postmaster.pid and awaited
//	server running        found by its postmaster.pid and used
//	power cut             PostgreSQL recovers by itself, its settings are durable
//	pid taken by another  postmaster.pid is seen to be stale and removed
//
// The server runs in a session of its own, so the Ctrl-C that ends the program
// does not reach it before the program has stopped it.
//
// # How it is reached, and by whom
//
// By TCP on 127.0.0.1 alone, with a SCRAM password made for this cluster. There
// is no Unix socket: its path may hold no more than 107 bytes, which a deep data
// directory exceeds, and a peer rule would not fit a server that runs as another
// user than its client. There is no trust: the loopback is open to everyone on
// the machine. SCRAM also proves the server to the client, so a stranger that
// gets hold of the port learns nothing.
//
// # As root
//
// PostgreSQL refuses to run as root, so root's server runs as the owner of the
// data if there is one, else as Options.User, else as postgres, else as nobody.
// Where that user cannot enter the data directory (below /root, mostly), the
// data goes to a new folder in /var/lib/billonce and DataDir/postgres is a link
// to it.
//
// The package is for Unix systems.
package pglocal
