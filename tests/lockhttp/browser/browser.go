// Package browser opens Chromium without a window for tests.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// Open starts a browser, which ends with the test. Chromium now and then ends as it starts, on a
// machine that compiles: then it is started again, twice at most.
func Open(t *testing.T) context.Context {
	t.Helper()
	path, err := find()
	if err != nil {
		t.Fatal(err)
	}
	for tries := 1; ; tries++ {
		tab, err := start(t, path)
		switch {
		case err == nil:
			return tab
		case tries == 3:
			t.Fatal(err)
		}
		t.Logf("the browser has not started: %v", err)
	}
}

func start(t *testing.T, path string) (context.Context, error) {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.Flag("disable-dev-shm-usage", true), chromedp.UserDataDir(t.TempDir()))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // which doesn't start for root
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx, chromedp.Do(ctx) // without a limit, which the browser would end with
}

// Limit is the time that a busy machine needs for what is done in a browser.
const Limit = 3 * time.Minute

// Do does something in the browser.
func Do(tab context.Context, t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(tab, Limit)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// Get returns what an action of the browser returns.
func Get[T any](tab context.Context, t *testing.T, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(tab, Limit)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// find finds Chromium, or as root on Debian installs it.
var find = sync.OnceValues(func() (string, error) {
	_, here, _, _ := runtime.Caller(0)
	out, err := exec.Command(filepath.Join(filepath.Dir(here), "../../../internal/test/tools/need-chromium.sh")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("tests in a browser need Chromium: %w: %s", err, out)
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("tests in a browser need Chromium, and PATH has none: %s", out)
})

// Console finds out what the browser complains of from now on, until it is asked for it.
func Console(tab context.Context, t *testing.T) func() []string {
	t.Helper()
	const end = "This is the end of the test."
	messages := chromedp.Console(tab)
	var wrong []string
	ended := make(chan error, 1)
	go func() {
		for m, err := range messages {
			if err != nil || m.Text == end {
				ended <- err
				return
			}
			if m.IsException() || m.Type == "error" || m.Type == "warning" {
				wrong = append(wrong, m.Text)
			}
		}
		ended <- tab.Err()
	}()
	return func() []string {
		t.Helper()
		if _, err := chromedp.Run(tab, chromedp.Evaluate[bool](fmt.Sprintf("console.debug(%q), true", end))); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		return wrong
	}
}

// Colours sets what the system prefers, "light" or "dark".
func Colours(tab context.Context, t *testing.T, scheme string) {
	t.Helper()
	_, err := chromedp.Call(tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	if err != nil {
		t.Fatal(err)
	}
}
