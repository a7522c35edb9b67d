#!/bin/sh
# Makes sure that there is a Chromium, which the tests of lockhttp read its pages with.
set -eu

for name in chromium chromium-browser google-chrome; do
	if command -v "$name" >/dev/null 2>&1; then
		exit 0
	fi
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "There is no Chromium on PATH: install it (Debian: chromium)." >&2
	exit 1
fi
echo "Installing Chromium."
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=300 chromium; }
install >/dev/null 2>&1 || { apt-get update -o DPkg::Lock::Timeout=300 && install; } >&2
