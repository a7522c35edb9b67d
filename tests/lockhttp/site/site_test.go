//go:build site

package site_test

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/lockhttp/browser"
)

const (
	repository = "../../.."
	built      = repository + "/.site"
	source     = "https://github.com/dca00107/lockstep/"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// site is a server with the site, and the browser that reads it.
type site struct {
	*testing.T
	url     string
	tab     context.Context
	mu      sync.Mutex
	missing []string
}

func visit(t *testing.T) *site {
	t.Helper()
	_, err := os.Stat(filepath.Join(built, "index.html"))
	testdb.FatalIf(t, err != nil, "there is no site to read, run make site: %v", err)
	s := &site{T: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := os.Stat(filepath.Join(built, filepath.FromSlash(r.URL.Path))); err != nil {
			s.mu.Lock()
			s.missing = append(s.missing, r.URL.Path)
			s.mu.Unlock()
		}
		http.FileServer(http.Dir(built)).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	s.tab = browser.Open(t)
	return s
}

func (s *site) do(steps ...chromedp.Action[chromedp.Void]) {
	s.Helper()
	browser.Do(s.tab, s.T, steps...)
}

// eval returns the value of an expression.
func eval[T any](s *site, script string) T {
	s.Helper()
	return browser.Get(s.tab, s.T, chromedp.Evaluate[T](script))
}

func (s *site) becomes(condition string) {
	s.Helper()
	if !testdb.Await(2*time.Minute, func() bool { return eval[bool](s, condition) }) {
		s.Fatalf("%s doesn't become: %s", eval[string](s, "location.href"), condition)
	}
}

// open opens a page, and waits until its scripts have taken it over.
func (s *site) open(page string) {
	s.Helper()
	s.do(chromedp.Navigate(s.url + page))
	s.becomes(`document.readyState === "complete" && !!document.querySelector("#app")?.__vue_app__`)
}

// page is what a page of the site has.
type page struct {
	Links, IDs, Missing, Wide, Elsewhere []string
	Width                                int
	Title                                string
}

const look = `({
	title: document.title,
	links: [...document.querySelectorAll("a[href]")].map(a => a.href),
	ids: [...document.querySelectorAll("[id]")].map(e => e.id),
	missing: [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src),
	width: document.documentElement.scrollWidth,
	wide: [...document.querySelectorAll(".vp-doc *")].filter(e => {
		for (let up = e.parentElement; up; up = up.parentElement) if (["auto", "scroll"].includes(getComputedStyle(up).overflowX)) return false;
		return e.getBoundingClientRect().right > innerWidth + 1;
	}).map(e => e.outerHTML.slice(0, 200)),
	elsewhere: performance.getEntriesByType("resource").map(r => r.name).filter(n => !n.startsWith(location.origin) && !n.startsWith("data:")),
})`

// TestEveryPage proves of every page, narrow and dark, that its links lead to what is there, that its pictures are there, that nothing is
// wider than the screen or loaded from elsewhere, and that no script complains.
func TestEveryPage(t *testing.T) {
	s := visit(t)
	messages := browser.Console(s.tab, t)
	browser.Colours(s.tab, t, "dark")
	s.do(chromedp.EmulateViewport(360, 740))
	pages := s.walk()
	for from, p := range pages {
		for _, link := range p.Links {
			s.leads(pages, from, link)
		}
	}
	for _, file := range htmls(t) {
		_, ok := pages[file]
		testdb.ErrorIf(t, !ok, "no link leads to %s", file)
	}
	testdb.ErrorIf(t, len(s.missing) > 0, "what is not there was asked for: %q", s.missing)
	wrong := messages()
	testdb.ErrorIf(t, len(wrong) > 0, "the browser complains: %q", wrong)
	t.Logf("read %d pages", len(pages))
}

// walk opens each page that a link leads to.
func (s *site) walk() map[string]page {
	s.Helper()
	pages := map[string]page{}
	for next := []string{"/"}; len(next) > 0; next = next[1:] {
		path := next[0]
		if _, ok := pages[path]; ok {
			continue
		}
		s.open(path)
		p := eval[page](s, look)
		pages[path] = p
		testdb.ErrorIf(s, p.Title == "" || p.Width > 360 || len(p.Missing)+len(p.Wide)+len(p.Elsewhere) > 0,
			"%s, %q: the width is %d, too wide are %q, missing are %q, from elsewhere come %q", path, p.Title, p.Width, p.Wide, p.Missing, p.Elsewhere)
		s.readable(path, true)
		for _, link := range p.Links {
			if to, err := url.Parse(link); err == nil && strings.HasPrefix(link, s.url) && (strings.HasSuffix(to.Path, ".html") || strings.HasSuffix(to.Path, "/")) {
				next = append(next, to.Path)
			}
		}
	}
	return pages
}

// leads checks that a link leads to what is there.
func (s *site) leads(pages map[string]page, from, link string) {
	s.Helper()
	to, err := url.Parse(link)
	if err != nil {
		s.Errorf("%s has the link %q: %v", from, link, err)
		return
	}
	if file, ok := strings.CutPrefix(link, source); ok {
		_, file, _ = strings.Cut(strings.SplitN(file, "#", 2)[0], "/main/")
		if _, err := os.Stat(filepath.Join(repository, file)); err != nil || file == "" && !strings.Contains(link, "/releases") && !strings.Contains(link, "/security") && !strings.Contains(link, "/compare") {
			s.Errorf("%s leads to %s, which is not in the repository", from, link)
		}
		return
	}
	if !strings.HasPrefix(link, s.url) {
		return
	}
	p, ok := pages[to.Path]
	if !ok {
		s.Errorf("%s leads to %s, which is no page", from, to.Path)
	} else if to.Fragment != "" && !slices.Contains(p.IDs, to.Fragment) {
		s.Errorf("%s leads to %s#%s, which has no such heading", from, to.Path, to.Fragment)
	}
}

// htmls returns the pages of the site, as links name them.
func htmls(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(built, func(path string, _ fs.DirEntry, err error) error {
		name, _ := strings.CutPrefix(filepath.ToSlash(path), built)
		if strings.HasSuffix(name, ".html") && name != "/404.html" {
			all = append(all, strings.TrimSuffix(name, "index.html"))
		}
		return err
	})
	testdb.FatalIf(t, err != nil, "%v", err)
	return all
}

// text is a text of a page that can hardly be told from its ground.
type text struct {
	Contrast float64
	Text     string
}

const contrasts = `(() => {
	const parse = c => { const v = c.match(/[\d.]+/g).map(Number); return [...v.slice(0, 3), v[3] ?? 1]; };
	const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3]));
	const ground = e => { const c = e ? parse(getComputedStyle(e).backgroundColor) : [255, 255, 255, 1]; return c[3] === 1 ? c : [...over(c, ground(e.parentElement)), 1]; };
	const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
	const contrast = e => { const g = ground(e), a = light(over(parse(getComputedStyle(e).color), g)), b = light(g); return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); };
	const texts = [...document.querySelectorAll(".vp-doc *, .VPDoc, .VPSidebar *")].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.checkVisibility({opacityProperty: true, visibilityProperty: true}));
	return {dark: light(ground(document.body)) < .2, faint: texts.map(e => ({contrast: contrast(e), text: e.innerText.slice(0, 60)})).filter(t => t.contrast < %v)};
})()`

// readable checks that the page is dark, or not, and that its texts can be told from their ground.
func (s *site) readable(path string, dark bool) {
	s.Helper()
	got := eval[struct {
		Dark  bool
		Faint []text
	}](s, fmt.Sprintf(contrasts, 4.5))
	testdb.ErrorIf(s, got.Dark != dark || len(got.Faint) > 0, "%s: dark is %t, and hard to read is %v", path, got.Dark, got.Faint)
}

// TestLight proves that the site is light where the system is, and that a switch makes it dark.
func TestLight(t *testing.T) {
	s := visit(t)
	browser.Colours(s.tab, t, "light")
	s.do(chromedp.EmulateViewport(1400, 900))
	for _, page := range []string{"/", "/docs/how-to/leases.html", "/zh-CN/docs/tutorials/gorm.html"} {
		s.open(page)
		s.readable(page, false)
	}
	s.do(chromedp.Click(".VPNavBarAppearance button"))
	s.becomes(`document.documentElement.classList.contains("dark")`)
	s.readable("after the switch", true)
	s.open("/")
	s.readable("after the switch, /", true)
}

// TestSearch proves that the keyboard alone opens the search, which finds pages in both
// languages, and opens the first one.
func TestSearch(t *testing.T) {
	for start, words := range map[string][]string{"/docs/": {"fencing"}, "/zh-CN/docs/": {"租约", "死锁"}} {
		for _, word := range words {
			t.Run(word, func(t *testing.T) {
				s := visit(t)
				messages := browser.Console(s.tab, t)
				s.open(start)
				s.do(chromedp.KeyEvent("/"))
				s.becomes(`document.activeElement?.id === "localsearch-input"`)
				s.do(chromedp.KeyEvent(word))
				s.becomes(fmt.Sprintf(`[...document.querySelectorAll(".VPLocalSearchBox .result mark")].some(m => m.innerText.toLowerCase() === %q)`, word))
				s.do(chromedp.KeyEvent("\r"))
				s.becomes(fmt.Sprintf(`location.pathname.startsWith(%q) && location.pathname !== %[1]q && document.querySelector(".vp-doc").innerText.toLowerCase().includes(%q)`, start, word))
				wrong := messages()
				testdb.ErrorIf(t, len(wrong) > 0, "the browser complains: %q", wrong)
			})
		}
	}
}
