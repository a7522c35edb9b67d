#!/bin/sh
# Prints which part of the statements of each package the tests of these modules execute:
# cover.sh . lockgorm.
set -eu
path=github.com/dca00107/lockstep
covered=$path/txlock/...,$path/locksqlc,$path/lockgorm,$path/schema,$path/internal/guard
root=$(pwd)
rm -rf .cover
mkdir .cover
for module in "$@"; do
	(cd "$module" && go test -count=1 -parallel 8 -timeout 20m -cover -coverpkg=$covered ./... -args -test.gocoverdir="$root/.cover")
done
go tool covdata percent -i=.cover
