#!/bin/sh
# Compares what the packages of the module in this directory export with a release: the last
# one, or the commit in BASE. Fails if programs for that may not compile any more.
set -eu
: "${APIDIFF:=go run golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e}"
base=${BASE:-$(git tag --list 'v*' --sort=-version:refname | grep -v -- - | head -n 1 || true)}
if [ -z "$base" ]; then
	echo "There is no release to compare with, no tag v*. BASE=commit compares with any commit."
	exit 0
fi
module=$(go list -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
diff() { $APIDIFF -m "$@" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }; }
mkdir "$work/base"
git -C "$(git rev-parse --show-toplevel)" archive --output "$work/base.tar" "$base"
tar -xf "$work/base.tar" -C "$work/base"
(cd "$work/base/$(git rev-parse --show-prefix)" && GOWORK=off diff -w "$work/old" "$module")
GOWORK=off diff -w "$work/new" "$module"
diff "$work/old" "$work/new"
diff -incompatible "$work/old" "$work/new" >"$work/incompatible"
if [ -s "$work/incompatible" ]; then
	echo "Programs for $base may not compile. Before v1.0.0 that needs a new minor version, after it a new path."
	exit 1
fi
echo "Programs for $base compile."
