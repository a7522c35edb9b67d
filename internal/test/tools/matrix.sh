#!/bin/sh
# Runs make test on the images of Docker that the first argument names, or, where that is
# empty, on the MariaDB of the suites of Debian in the second: matrix.sh "mysql:9" "trixie".
set -eu
images=$1 debians=$2
if [ -n "$images" ] && ! docker info >/dev/null; then
	echo "make test-matrix needs Docker for $images, and docker info fails here. With IMAGES= it takes the MariaDB of Debian's $debians."
	exit 1
fi
for image in $images; do
	engine=${image%%:*}
	variable=LOCKSTEP_$(echo "$engine" | tr a-z A-Z)
	echo "make test on $image"
	env -u "${variable}_DSN" "${variable}_IMAGE=$image" make test ENGINES="$engine"
done
if [ -z "$images" ]; then
	for suite in $debians; do
		echo "make test on the MariaDB of Debian $suite"
		env -u LOCKSTEP_MARIADB_DSN -u LOCKSTEP_MARIADB_IMAGE LOCKSTEP_MARIADB_DEBIAN="$suite" make test ENGINES=mariadb
	done
	images="the MariaDB of Debian $debians"
fi
echo "make test has passed on $images, and was run on nothing else."
