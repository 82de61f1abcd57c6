#!/bin/sh
# Prints -race where the race detector works, which takes cgo, a C compiler with
# its library's headers, and a system that it knows. A trial tells.
set -eu

trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
printf 'package main\n\nfunc main() {}\n' >"$trial/main.go"
if said=$("${GO:-go}" run -race "$trial/main.go" 2>&1); then
	echo "-race"
else
	echo "The race detector does not work here, so the tests run without it: $(printf '%s\n' "$said" | tail -n 1)" >&2
fi
