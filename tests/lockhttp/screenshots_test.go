package lockhttp_test

import (
	"bytes"
	"context"
	"flag"
	"image/png"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/lockhttp/browser"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

var update = flag.Bool("update", false, "write docs/lockhttp-*.png, after some minutes of work for the charts")

// TestScreenshots makes the pictures of the documentation, which are small files.
func TestScreenshots(t *testing.T) {
	onOne(t, screenshots) // MySQL, if it is there, which tells more
}

func screenshots(t *testing.T, engine testdb.Engine) {
	s := visit(t, engine, plain)
	m := s.manager(lease.WithLabel("web-2/815: nightly report"))
	report, err := m.Acquire(lease.WithOwner(t.Context(), "web-2/815"), txlock.Named("report"))
	s.must(err)
	defer func() { _ = report.Release(context.WithoutCancel(t.Context())) }()
	s.open("")
	if *update {
		s.work(3 * time.Minute)
	}
	s.lock(txlock.Named("order:42"))
	middle, scope := s.begin()
	s.must(second(scope.Lock(txlock.WithLabel(t.Context(), "web-2/815"), txlock.Named("order:77"))))
	s.wait(middle, scope, txlock.Named("order:42"))
	for range 2 {
		tx, scope := s.begin()
		s.wait(tx, scope, txlock.Named("order:77"))
	}
	for _, shot := range []struct {
		name, page, scheme, shows string
		width, height             int64
	}{
		{"overview", "", "light", "order:77", 1100, 800},
		{"waits-dark", "waits", "dark", "order:77", 1100, 500},
		{"narrow", "key?key=order%3A42", "light", "web-1/4711", 360, 740},
	} {
		browser.Colours(s.tab, t, shot.scheme)
		s.do(chromedp.EmulateViewport(shot.width, shot.height))
		s.open(shot.page)
		s.becomes(shot.shows, "Live")
		picture := browser.Get(s.tab, s.T, chromedp.FullScreenshot(100))
		config, err := png.DecodeConfig(bytes.NewReader(picture))
		s.must(err)
		if int64(config.Width) != shot.width || int64(config.Height) < shot.height/2 || len(picture) > 300_000 {
			t.Errorf("%s has %d by %d pixels, and %d bytes", shot.name, config.Width, config.Height, len(picture))
		}
		if *update {
			s.must(os.WriteFile(filepath.Join("..", "..", "docs", "lockhttp-"+shot.name+".png"), picture, 0o644))
		}
	}
}

// work takes locks, so that the charts have something to draw.
func (s *site) work(during time.Duration) {
	s.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); {
		busy := time.Duration(1+time.Now().Unix()/20%4) * 20 * time.Millisecond
		tx, scope := s.begin()
		s.must(second(scope.Lock(s.Context(), txlock.Named("stock:7"))))
		time.Sleep(busy) // the work
		s.must(tx.Commit())
	}
}
