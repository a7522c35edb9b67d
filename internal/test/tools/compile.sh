#!/bin/sh
# Compiles the programs in these directories, which go run then finds in the build cache, and
# prints a line every three seconds: go run is silent while it compiles.
set -eu

s=0
while sleep 3 >/dev/null 2>&1; do
	s=$((s + 3))
	echo "still compiling, $s s"
done &
trap "kill $!" EXIT
for dir; do
	go build -C "$dir" -o /dev/null .
done
