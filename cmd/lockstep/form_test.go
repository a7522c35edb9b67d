package main

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
)

// forms are what the commands print by --json.
var forms = []struct {
	command string
	value   any
}{
	{"locks", locksForm{}}, {"leases", leasesForm{}}, {"waits", waitsForm{}}, {"show KEY", shown{}}, {"jobs", ops.Jobs{}}, {"jobs show NAME", jobForm{}}, {"jobs pause NAME", changedForm{}}, {"once", onceForm{}},
	{"leaders", leadersForm{}}, {"ask KEY", askedForm{}}, {"release KEY", releasedForm{}},
	{"install", installedForm{}}, {"check", findingsForm{}}, {"purge", removedForm{}}, {"bench", measuredForm{}}, {"version", versionForm{}},
}

// form writes the types of what the commands print, each once.
type form struct {
	strings.Builder
	seen map[reflect.Type]bool
	next []reflect.Type
}

// name names a type, whose fields are written later.
func (f *form) name(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "time"
	case t.Kind() == reflect.Float64:
		return "number"
	case t.Kind() == reflect.Pointer:
		return f.name(t.Elem())
	case t.Kind() == reflect.Slice:
		return "list of " + f.name(t.Elem())
	case t.Kind() == reflect.Map:
		return "object of " + f.name(t.Elem())
	case t.Kind() == reflect.Struct:
		if !f.seen[t] {
			f.seen[t] = true
			f.next = append(f.next, t)
		}
		return t.Name()
	case strings.Contains(t.Kind().String(), "int"):
		return "integer"
	}
	return t.Kind().String()
}

// fields writes the fields of a type.
func (f *form) fields(t reflect.Type) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous:
			f.fields(field.Type)
		case field.IsExported():
			if strings.HasPrefix(options, "omit") {
				name += "?"
			}
			_, _ = fmt.Fprintf(f, "  %-16s %s\n", name, f.name(field.Type))
		}
	}
}

var formBlock = regexp.MustCompile("(?s)(<!-- json -->\n```text\n)(.*?)(```\n)")

// TestJSONForm proves that the page documents the JSON of each command, whose form stays.
func TestJSONForm(t *testing.T) {
	b := form{seen: map[reflect.Type]bool{}}
	for _, form := range forms {
		_, _ = fmt.Fprintf(&b, "lockstep %s --json\n", form.command)
		b.fields(reflect.TypeOf(form.value))
	}
	for len(b.next) > 0 {
		t := b.next[0]
		b.next = b.next[1:]
		_, _ = fmt.Fprintf(&b, "%s\n", t.Name())
		b.fields(t)
	}
	have := formBlock.FindStringSubmatch(page.texts[jsonPath])
	switch {
	case have == nil:
		t.Fatal("json.md has no block for the forms")
	case have[2] == b.String():
	case *update:
		page.mu.Lock()
		defer page.mu.Unlock()
		page.write(t, jsonPath, strings.Replace(page.texts[jsonPath], have[0], have[1]+b.String()+have[3], 1))
	default:
		t.Errorf("the form has changed:\n%s\nThe page has:\n%s", b.String(), have[2])
	}
}
