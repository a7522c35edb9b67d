#!/bin/sh
# Makes sure that there is an HAProxy, which the tests of proxies put before servers.
set -eu

if command -v haproxy >/dev/null 2>&1 || [ -x /usr/sbin/haproxy ]; then
	exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "There is no HAProxy on PATH: install it (Debian: haproxy)." >&2
	exit 1
fi
echo "Installing HAProxy."
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=300 haproxy; }
install >/dev/null 2>&1 || { apt-get update -o DPkg::Lock::Timeout=300 && install; } >&2
