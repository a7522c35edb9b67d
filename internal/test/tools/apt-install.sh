#!/bin/sh
# Installs Debian packages as root, or says what is missing and fails:
# apt-install.sh "what is installed" "what to say where it can't be" package...
set -eu

what=$1 missing=$2
shift 2
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "$missing" >&2
	exit 1
fi
echo "Installing $what."
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"; }
install "$@" >/dev/null 2>&1 || { apt-get update -o DPkg::Lock::Timeout=300 && install "$@"; } >&2
