// Package lockhttp tests the pages of lockhttp in a real browser, Chromium without a window.
// It is a module of its own, so that nobody else compiles what drives the browser.
package lockhttp_test

import (
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }
