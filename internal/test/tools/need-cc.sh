#!/bin/sh
# Makes sure that there is a C compiler, which the race detector needs.
set -eu

if command -v "${CC:-cc}" >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1; then
	exit 0
fi
exec "$(dirname "$0")/apt-install.sh" "gcc for the race detector" \
	"The race detector needs a C compiler: install gcc and the C library's headers (Debian: gcc libc6-dev)." gcc libc6-dev
