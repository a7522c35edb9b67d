#!/bin/sh
# Lints these modules at once, as they share much that is read once then, and names the functions
# that nothing reaches, no program and no test of any of them: lint.sh . lockgorm. What a public
# package exports is for others. Functions of tests are the linter's, which knows examples.
set -eu
: "${DEADCODE:=go run golang.org/x/tools/cmd/deadcode@v0.39.0}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
	echo "go $(go env GOVERSION | sed 's/^go//; s/ .*//')"
	for module in "$@"; do echo "use $(cd "$module" && pwd)"; done
} >"$work/go.work"
patterns=$(for module in "$@"; do echo "./$module/..."; done | sed 's,^\./\./,./,')
GOWORK=$work/go.work sh -c "$GOLANGCI run --allow-parallel-runners --build-tags $TAGS \"\$@\"" sh $patterns
GOWORK=$work/go.work $DEADCODE -test -tags "$TAGS" -filter '^github.com/dca00107/lockstep' $patterns >"$work/all"
awk -F ': unreachable func: ' '
	$1 ~ /_test\.go:/ { next }
	{ name = $2; sub(/.*\./, "", name) }
	$1 !~ /(^|\/)internal\/|^(tests|bench|cmd|examples)\// && name ~ /^[A-Z]/ { next }
	{ print; dead = 1 }
	END { exit dead }' "$work/all"
