//go:build race

package quorum_test

// underRace tells that the race detector watches, which makes the explorer eight times as slow.
const underRace = true
