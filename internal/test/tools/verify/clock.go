package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// sqlc has no macros, so the queries read the server's clock, the words and the level of the session
// by these names, which are expanded in the copy that sqlc compiles. What is subtracted needs no
// parentheses then.
const (
	clock          = "clock_us()"
	clockAfterWait = "clock_after_wait_us()"
	sessionWords   = "session_words()"
	sessionLevel   = "session_level()"
)

var (
	subtracted = "- " + strings.ReplaceAll(rawsql.Clock, " + ", " - ")

	expand = strings.NewReplacer("- "+clock, subtracted, clockAfterWait, rawsql.ClockAfterWait, clock, rawsql.Clock, sessionWords, rawsql.SessionWords, sessionLevel, rawsql.SessionLevel)
	fold   = strings.NewReplacer(rawsql.ClockAfterWait, clockAfterWait, subtracted, "- "+clock, rawsql.Clock, clock, rawsql.SessionWords, sessionWords, rawsql.SessionLevel, sessionLevel)
)

// foldQueries makes the queries read the clock by its names.
func foldQueries(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.sql"))
	for _, file := range files {
		text, failed := os.ReadFile(file)
		if folded := fold.Replace(string(text)); folded != string(text) {
			failed = os.WriteFile(file, []byte(folded), 0o644)
		}
		err = errors.Join(err, failed)
	}
	return err
}
