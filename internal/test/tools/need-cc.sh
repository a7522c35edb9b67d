#!/bin/sh
# Makes sure that there is a C compiler, which the race detector needs.
set -eu

if command -v "${CC:-cc}" >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1; then
	exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "The race detector needs a C compiler: install gcc and the C library's headers (Debian: gcc libc6-dev)." >&2
	exit 1
fi
echo "Installing gcc for the race detector."
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=300 gcc libc6-dev; }
install >/dev/null 2>&1 || { apt-get update -o DPkg::Lock::Timeout=300 && install; } >&2
