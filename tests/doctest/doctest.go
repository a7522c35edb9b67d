// Package doctest does what a document tells its reader to do: it writes the files that the
// document shows, sends its commands to a shell, and compares what they print. So the
// document is the source, and nothing in it can grow old.
//
// What is in a fenced block is said by its info string, of which readers see the language
// only:
//
//	```go file=shop.go       the whole content of a file
//	```go part               a part of a file that the document shows, too
//	```console               commands, each after "$ " (and "> " where it goes on), and
//	                         below a command what it prints, if the document shows that
//	```console fails         the same; the last command must fail
//	```console installs      commands that install programs of others, once on a machine
//	```console checkout      commands for who has a checkout of lockstep,
//	```console release       or for who takes a release
//	```text                  neither: a picture, a piece of what is shown elsewhere
//
// Any other block is an error, so that no code stays unread. In what is printed "..." stands
// for anything, durations are all the same, and so are white spaces.
package doctest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Reader is who follows a document.
type Reader struct {
	// Env is added to the environment of the commands.
	Env []string
	// Instead has in pairs what commands say, and what is sent in its place, as the address
	// of a server. In what they print it is changed back.
	Instead []string
	// Checkout tells that the reader has a checkout of lockstep, and takes no release.
	Checkout bool
	// Ran, if it isn't nil, is called after each command that has done what it should, and
	// may run others in the same shell.
	Ran func(command string, run func(command string) (string, error))
}

// Follow does in an empty directory what documents say, one after the other, and returns the
// directory.
func (r Reader) Follow(t testing.TB, documents ...string) string {
	t.Helper()
	sh := r.open(t, t.TempDir())
	for _, document := range documents {
		text, err := os.ReadFile(document)
		check(t, err)
		blocks, err := parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", document, err)
		}
		for _, b := range blocks {
			if err := r.do(t, sh, b); err != nil {
				t.Fatalf("%s:%d: %v", document, b.line, err)
			}
		}
	}
	where, err := sh.run("pwd")
	check(t, err)
	return where
}

// do does what a block says.
func (r Reader) do(t testing.TB, sh *shell, b block) error {
	switch {
	case b.has("installs"):
		programs, err := r.install(t, b)
		if err != nil {
			return err
		}
		_, err = sh.run(`PATH="` + programs + `:$PATH"`)
		return err
	case b.file != "":
		return sh.write(b.file, b.text)
	case b.language == "text", b.has("part"), b.has("checkout") && !r.Checkout, b.has("release") && r.Checkout:
		return nil
	}
	there, back := strings.NewReplacer(r.Instead...), strings.NewReplacer(reversed(r.Instead)...)
	for i, c := range b.commands() {
		got, err := sh.run(there.Replace(c.line))
		got = back.Replace(got)
		t.Logf("$ %s\n%s", c.line, got)
		if fails := b.has("fails") && i == len(b.commands())-1; err != nil && !fails {
			return fmt.Errorf("$ %s\nends with %w and prints\n%s", c.line, err, got)
		} else if err == nil && fails {
			return fmt.Errorf("$ %s\nshould fail, and prints\n%s", c.line, got)
		}
		if !c.prints(got) {
			return fmt.Errorf("$ %s\nprints\n%s\nin place of\n%s", c.line, got, c.output)
		}
		if r.Ran != nil {
			r.Ran(c.line, sh.run)
		}
	}
	return nil
}

func reversed(pairs []string) []string {
	back := slices.Clone(pairs)
	for i := 0; i+1 < len(back); i += 2 {
		back[i], back[i+1] = back[i+1], back[i]
	}
	return back
}

// install runs the commands of a block with a GOBIN that outlives the test, unless another
// test has done so, and returns that directory. The programs are of others, and compiled as
// they would be without the environment of the test.
func (r Reader) install(t testing.TB, b block) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "lockstep-doctest")
	programs := filepath.Join(cache, fmt.Sprintf("%x", sha256.Sum256([]byte(b.text)))[:16])
	if _, err := os.Stat(programs); err == nil {
		return programs, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unfinished, err := os.MkdirTemp(cache, "unfinished-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(unfinished) }()
	sh := Reader{Env: []string{"GOBIN=" + unfinished}}.open(t, t.TempDir())
	for _, c := range b.commands() {
		if out, err := sh.run(c.line); err != nil {
			return "", fmt.Errorf("$ %s\nends with %w and prints\n%s", c.line, err, out)
		}
	}
	if err := os.Rename(unfinished, programs); err != nil {
		if _, other := os.Stat(programs); other != nil { // nobody else has been faster
			return "", err
		}
	}
	return programs, nil
}

// block is a fenced block of a document.
type block struct {
	language string
	file     string   // of file=
	words    []string // the others
	text     string
	line     int
}

func (b block) has(word string) bool { return slices.Contains(b.words, word) }

// known tells whether the info string is one of those above.
func (b block) known() bool {
	words := []string{"part"}
	if b.language == "console" {
		words = []string{"fails", "installs", "checkout", "release"}
	}
	unknown := slices.ContainsFunc(b.words, func(w string) bool { return !slices.Contains(words, w) })
	return !unknown && (b.file != "" || b.language == "console" || b.language == "text" || b.has("part"))
}

var fenced = regexp.MustCompile("(?ms)^```([^\n`]*)\n(.*?)^```$")

// parse returns the blocks of a document.
func parse(text string) ([]block, error) {
	var blocks []block
	for _, at := range fenced.FindAllStringSubmatchIndex(text, -1) {
		b := block{text: text[at[4]:at[5]], line: 1 + strings.Count(text[:at[0]], "\n")}
		for i, word := range strings.Fields(text[at[2]:at[3]]) {
			file, isFile := strings.CutPrefix(word, "file=")
			switch {
			case i == 0:
				b.language = word
			case isFile:
				b.file = file
			default:
				b.words = append(b.words, word)
			}
		}
		if !b.known() {
			return nil, fmt.Errorf("line %d: %q is neither a file nor commands: mark it by file=..., or as part, console or text", b.line, text[at[2]:at[3]])
		}
		if b.language == "console" && !strings.HasPrefix(b.text, "$ ") {
			return nil, fmt.Errorf("line %d: a console begins with $ and a command", b.line)
		}
		blocks = append(blocks, b)
	}
	if fences := regexp.MustCompile("(?m)^```").FindAllString(text, -1); len(fences) != 2*len(blocks) {
		return nil, fmt.Errorf("%d fences make no %d blocks", len(fences), len(blocks))
	}
	for _, b := range blocks {
		if b.has("part") && !slices.ContainsFunc(blocks, func(whole block) bool { return whole.file != "" && strings.Contains(whole.text, b.text) }) {
			return nil, fmt.Errorf("line %d: no file of the document has this part", b.line)
		}
	}
	return blocks, nil
}

// command is a line for the shell, and what it prints, if that is shown.
type command struct{ line, output string }

// commands returns those of a console.
func (b block) commands() []command {
	var commands []command
	for line := range strings.Lines(b.text) {
		last := len(commands) - 1
		if next, is := strings.CutPrefix(line, "$ "); is {
			commands = append(commands, command{line: strings.TrimSuffix(next, "\n")})
		} else if more, is := strings.CutPrefix(line, "> "); is && commands[last].output == "" {
			commands[last].line += "\n" + strings.TrimSuffix(more, "\n")
		} else {
			commands[last].output += line
		}
	}
	return commands
}

var (
	duration = regexp.MustCompile(`\b\d+\.\d+m?s\b`)
	blank    = regexp.MustCompile(`[ \t]+`)
)

// prints tells whether this is what the command prints.
func (c command) prints(got string) bool {
	if c.output == "" {
		return true
	}
	plain := func(s string) string {
		return strings.TrimSpace(blank.ReplaceAllString(duration.ReplaceAllString(s, "0.0s"), " "))
	}
	want := strings.ReplaceAll(regexp.QuoteMeta(plain(c.output)), `\.\.\.`, `(?s:.*)`)
	return regexp.MustCompile("^" + want + "$").MatchString(plain(got))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
