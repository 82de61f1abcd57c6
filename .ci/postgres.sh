#!/bin/sh
# Makes sure that this machine has the binaries of a PostgreSQL server, 14 or
# newer: looks where eventstore/pglocal looks, and installs the system's package
# if there are none. No server is left running; the service, the demo and the
# tests start their own.
set -eu

oldest=14

# usable prints the version in a folder, if it is new enough.
usable() {
	[ -x "$1/postgres" ] && [ -x "$1/initdb" ] || return 1
	version=$("$1/postgres" --version 2>/dev/null | sed -n 's/^.*(PostgreSQL) \([0-9][0-9]*\).*$/\1/p')
	[ -n "$version" ] && [ "$version" -ge "$oldest" ] && echo "$version"
}

# find_server prints the first usable folder.
find_server() {
	if [ -n "${BILLING_POSTGRES_BIN:-}" ]; then
		usable "$BILLING_POSTGRES_BIN" >/dev/null && echo "$BILLING_POSTGRES_BIN"
		return
	fi
	saved_ifs=$IFS
	IFS=:
	set -f
	for dir in $PATH; do
		if usable "$dir" >/dev/null; then
			echo "$dir"
			return
		fi
	done
	set +f
	IFS=$saved_ifs
	if dir=$(pg_config --bindir 2>/dev/null) && usable "$dir" >/dev/null; then
		echo "$dir"
		return
	fi
	for dir in \
		/usr/lib/postgresql/*/bin \
		/usr/pgsql-*/bin \
		/usr/libexec/postgresql* \
		/usr/lib/postgresql*/bin \
		/opt/homebrew/opt/postgresql*/bin \
		/usr/local/opt/postgresql*/bin \
		/home/linuxbrew/.linuxbrew/opt/postgresql*/bin \
		/Applications/Postgres.app/Contents/Versions/*/bin \
		/usr/local/pgsql/bin; do
		if usable "$dir" >/dev/null; then
			echo "$dir"
			return
		fi
	done
	return 1
}

fail() {
	printf '%s\n' "$@" >&2
	exit 1
}

by_hand="Install PostgreSQL $oldest or newer by hand (its server, with initdb), or set
BILLING_POSTGRES_BIN to the folder that holds postgres and initdb."

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null 2>&1; then
		sudo "$@"
	else
		fail "This takes root, and there is no sudo: $*" "$by_hand"
	fi
}

# Debian's package would make a cluster and run it; it is told not to, for this
# installation alone.
install_debian() {
	conf=/etc/postgresql-common/createcluster.d/billonce.conf
	as_root apt-get update -q
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql-common
	as_root sh -c "mkdir -p '${conf%/*}' && echo 'create_main_cluster = false' >'$conf'"
	status=0
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql || status=$?
	as_root rm -f "$conf"
	return "$status"
}

install_server() {
	if command -v apt-get >/dev/null 2>&1; then
		install_debian
	elif command -v dnf >/dev/null 2>&1; then
		as_root dnf install -y postgresql-server
	elif command -v yum >/dev/null 2>&1; then
		as_root yum install -y postgresql-server
	elif command -v apk >/dev/null 2>&1; then
		as_root apk add postgresql
	elif command -v zypper >/dev/null 2>&1; then
		as_root zypper --non-interactive install postgresql-server
	elif command -v pacman >/dev/null 2>&1; then
		as_root pacman -S --needed --noconfirm postgresql
	elif command -v brew >/dev/null 2>&1; then
		brew install postgresql@17 # refuses to run as root, and says so
	else
		fail "No PostgreSQL server was found, and no package manager that is known here." "$by_hand"
	fi
}

if dir=$(find_server); then
	echo "PostgreSQL $(usable "$dir"): $dir"
	exit 0
fi
if [ -n "${BILLING_POSTGRES_BIN:-}" ]; then
	fail "BILLING_POSTGRES_BIN is $BILLING_POSTGRES_BIN, which holds no postgres and initdb of version $oldest or newer."
fi
echo "No PostgreSQL server of version $oldest or newer was found. Installing one."
install_server || fail "The installation failed." "$by_hand"
dir=$(find_server) || fail "What was installed is not PostgreSQL $oldest or newer." "$by_hand"
echo "PostgreSQL $(usable "$dir"): $dir"
