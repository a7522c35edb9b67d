#!/bin/sh
# Runs every fuzz target of the module in the working directory for a time, one after the
# other: fuzz.sh 10m. What fails stays in testdata/fuzz of its package, and what has covered
# new code in the cache of go, where the next run begins; FUZZKEEP=20 copies so many of the
# smallest inputs of each target into testdata/fuzz as well.
set -eu

time=$1
failed=0
files=$(go list -f '{{$d := .Dir}}{{range .TestGoFiles}}{{$d}}/{{.}} {{end}}{{range .XTestGoFiles}}{{$d}}/{{.}} {{end}}' ./...)
for file in $(grep -l '^func Fuzz' /dev/null $files); do
	directory=$(dirname "$file")
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file"); do
		echo "$directory $target for $time"
		go test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "$time" -parallel "${FUZZPARALLEL:-$(getconf _NPROCESSORS_ONLN)}" "$directory" || failed=1
		found=$(go env GOCACHE)/fuzz/$(go list "$directory")/$target
		[ -n "${FUZZKEEP:-}" ] && [ -d "$found" ] || continue
		mkdir -p "$directory/testdata/fuzz/$target"
		ls -S -r "$found" | head -n "$FUZZKEEP" | while read -r input; do
			cp "$found/$input" "$directory/testdata/fuzz/$target/"
		done
	done
done
exit $failed
