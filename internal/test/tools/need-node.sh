#!/bin/sh
# Makes sure that there are Node 18 or later and npm, which make the site of the documentation.
set -eu

missing="There is no Node 18 or later with npm on PATH: install them (Debian: nodejs and npm)."
if command -v npm >/dev/null 2>&1 && command -v node >/dev/null 2>&1; then
	if [ "$(node --print 'parseInt(process.versions.node)')" -ge 18 ]; then
		exit 0
	fi
	echo "Node is $(node --version). $missing" >&2
	exit 1
fi
exec "$(dirname "$0")/apt-install.sh" "Node and npm" "$missing" nodejs npm
