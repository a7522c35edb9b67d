package locksuite

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPromises: every case of the page exists, every behaviour stands on it, and the
// page is right about which of them a stand-in shows.
func TestPromises(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted, named := regexp.MustCompile(`"([^"]+)"`), regexp.MustCompile("`([a-z/]+)\\.(Test[A-Za-z0-9]+)`")
	var behaved []string
	tests := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		if len(cells) != 3 {
			continue
		}
		cases, inMemory := cells[1], strings.Contains(cells[2], "memory")
		for _, match := range quoted.FindAllStringSubmatch(cases, -1) {
			behaved = append(behaved, match[1])
			if inMemory != (beyondMemory[match[1]] == "") {
				t.Errorf("%q: the page says memory: %t", match[1], inMemory)
			}
		}
		for _, match := range named.FindAllStringSubmatch(cases, -1) {
			tests++
			if !declares(t, match[1], match[2]) {
				t.Errorf("%s has no %s", match[1], match[2])
			}
		}
	}
	var shown []string
	for _, b := range slices.Concat(behaviours, versions, onces) {
		shown = append(shown, b.name)
	}
	slices.Sort(behaved)
	slices.Sort(shown)
	if !slices.Equal(behaved, shown) {
		t.Errorf("on the page:\n%s\nin the suite:\n%s", strings.Join(behaved, "\n"), strings.Join(shown, "\n"))
	}
	if tests == 0 {
		t.Error("no test is on the page")
	}
}

// declares tells whether the package in a directory of the repository has a test.
func declares(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "..", filepath.FromSlash(dir), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(source), "\nfunc "+test+"(t *testing.T)") {
			return true
		}
	}
	return false
}
