#!/bin/sh
# Makes sure that there is a Chromium, which the tests of lockhttp read its pages with.
set -eu

for name in chromium chromium-browser google-chrome; do
	if command -v "$name" >/dev/null 2>&1; then
		exit 0
	fi
done
exec "$(dirname "$0")/apt-install.sh" "Chromium" "There is no Chromium on PATH: install it (Debian: chromium)." chromium
