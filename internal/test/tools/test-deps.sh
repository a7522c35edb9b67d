#!/bin/sh
# Tests the library with other versions than those of everyday: test-deps.sh oldest takes
# the Go of go.mod's go line and the versions of go.mod, which are the oldest that it
# allows, and test-deps.sh newest the latest of both, by a go.mod of its own in a temporary
# directory. The packages to test are the other arguments, the flags of go test in GOTESTFLAGS.
set -eu

which=$1
shift
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

case $which in
oldest) GOTOOLCHAIN=go$(go list -m -f '{{.GoVersion}}') ;;
newest) GOTOOLCHAIN=go$(go list -m -f '{{.Version}}' go@latest) ;;
*) echo "test-deps.sh oldest|newest PACKAGE..." >&2; exit 2 ;;
esac
export GOTOOLCHAIN GOWORK=off

# versions makes a go.mod for the module in the working directory.
versions() {
	modfile=$temporary/$1.mod
	cp go.mod "$modfile"
	cp go.sum "$temporary/$1.sum"
	[ "$which" = newest ] || return 0
	go get -modfile="$modfile" $(go list -m -f '{{if not (or .Main .Indirect .Replace)}}{{.Path}}@latest{{end}}' all)
}

# tested prints the versions of modules, and tests the packages that are its other arguments.
tested() {
	echo "$which: $(go version | cut -d ' ' -f 3), $(go list -modfile="$modfile" -m $1 | tr '\n' ',')"
	shift
	go vet -modfile="$modfile" ./...
	go test -modfile="$modfile" -count=1 -vet=off -timeout 20m ${GOTESTFLAGS:-} "$@"
}

versions root
tested github.com/go-sql-driver/mysql "$@"
(cd lockgorm && versions lockgorm && tested "github.com/go-sql-driver/mysql gorm.io/gorm gorm.io/driver/mysql gorm.io/plugin/dbresolver" .)
(cd txlock/lockotel && versions lockotel && tested go.opentelemetry.io/otel .)
for module in examples tests tests/gormgen; do
	echo "$which: go vet of $module"
	(cd $module && versions "$(basename $module)" && go vet -modfile="$modfile" ./...)
done
