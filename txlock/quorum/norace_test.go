//go:build !race

package quorum_test

const underRace = false
