#!/bin/sh
# loaded.sh runs a command beside so many busy processes, each of which would have a
# processor for itself. They end with it, whatever ends it: each asks now and then whether
# this shell still lives.
#
#	loaded.sh processes command...
set -eu
processes=$1
shift
busy() {
	while kill -0 $$ 2>/dev/null; do
		turns=0
		while [ "$turns" -lt 100000 ]; do turns=$((turns + 1)); done
	done
}
for _ in $(seq "$processes"); do busy & done
status=0
"$@" || status=$?
exit "$status"
