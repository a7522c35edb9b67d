#!/bin/sh
# Draws the SVGs of this directory from the texts beside them: D2 those of sequences and
# boxes, freeze what a terminal shows.
set -eu
: "${D2:=go run oss.terrastruct.com/d2@v0.7.1}"
: "${FREEZE:=go run github.com/charmbracelet/freeze@v0.2.2}"
cd "$(dirname "$0")"
for source in *.d2; do
	$D2 --theme=0 --dark-theme=200 --pad=20 "$source" "${source%.d2}.svg"
done
$FREEZE lockstep-top.txt --language text --theme github --font.family monospace --padding 20 --output lockstep-top.svg
chmod 644 ./*.svg
