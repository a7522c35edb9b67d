#!/bin/sh
# Runs promtool: that of the PATH, or else that of Debian's package prometheus, which is
# unpacked for this run and not installed, so that no Prometheus is started.
set -eu

if command -v promtool >/dev/null 2>&1; then
	exec promtool "$@"
fi
if ! command -v apt-get >/dev/null 2>&1; then
	echo "The alert rules are tested by promtool: install Prometheus (Debian: prometheus)." >&2
	exit 1
fi
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
fetch() { (cd "$tree" && apt-get download prometheus); }
fetch >/dev/null 2>&1 || { apt-get update -o DPkg::Lock::Timeout=300 && fetch; } >&2
dpkg-deb --extract "$tree"/prometheus_*.deb "$tree"
"$tree/usr/bin/promtool" "$@"
