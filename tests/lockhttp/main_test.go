// Package lockhttp tests the pages of lockhttp in a real browser, Chromium without a window.
// It is a module of its own, so that nobody else compiles what drives the browser.
package lockhttp_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// browser finds Chromium, or as root on Debian installs it.
var browser = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("../../internal/test/tools/need-chromium.sh").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("the tests of lockhttp need Chromium: %w: %s", err, out)
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("the tests of lockhttp need Chromium, and PATH has none: %s", out)
})

// browse starts a browser, which ends with the test.
func browse(t *testing.T) context.Context {
	t.Helper()
	path, err := browser()
	if err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.Flag("disable-dev-shm-usage", true), chromedp.UserDataDir(t.TempDir()))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // which doesn't start for root
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx
}
