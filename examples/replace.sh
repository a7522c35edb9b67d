#!/bin/sh
# Prints arguments for go mod edit, so that a program uses the modules of this checkout:
#
#	go mod edit $(../lockstep/examples/replace.sh)
set -e
cd "$(dirname "$0")/.."
for file in go.mod lockgorm/go.mod txlock/*/go.mod contrib/*/go.mod cmd/*/go.mod; do
	echo "-replace=$(sed -n 's/^module //p' "$file")=$PWD/${file%go.mod}"
done
