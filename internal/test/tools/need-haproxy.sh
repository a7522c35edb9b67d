#!/bin/sh
# Makes sure that there is an HAProxy, which the tests of proxies put before servers.
set -eu

if command -v haproxy >/dev/null 2>&1 || [ -x /usr/sbin/haproxy ]; then
	exit 0
fi
exec "$(dirname "$0")/apt-install.sh" "HAProxy" "There is no HAProxy on PATH: install it (Debian: haproxy)." haproxy
