//go:build !race

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOnly proves that -only asks for the locks of what it names and of nothing else, lists the
// rest, and leaves no query in Locked of which the locks aren't known.
func TestOnly(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, "shopdb/shopdb")
	for _, lock := range []string{"-- lock: Carts(id)\n", "-- lock: Lines(order_id, line)\n"} {
		w.replace(filepath.Join(w.root, "queries.sql"), lock, "-- later\n")
	}
	written := filepath.Join(w.dir, output)

	const touches, replaces = "TouchCart writes carts, which is locked by Carts. Write below its name: -- lock: Carts(id)", "ReplaceLine writes order_lines"
	later := w.lockgen(0, []string{"-only leaves for later:", touches, replaces}, "-only", "accounts, Reparent")
	if strings.Contains(later, "Accounts") {
		t.Errorf("what was asked for is left for later:\n%s", later)
	}
	w.lockgen(0, []string{touches}, "-only", "accounts, Reparent", "-check")
	for query, want := range map[string]bool{"SetBalance": true, "Reparent": true, "UpsertProduct": true, "TouchCart": false, "ReplaceLine": false} {
		if has := strings.Contains(w.read(written), "func (l *Locked) "+query+"("); has != want {
			t.Errorf("Locked has %s: %t, want %t", query, has, want)
		}
	}
	if out, err := exec.Command("go", "vet", "./"+w.dir).CombinedOutput(); err != nil {
		t.Errorf("go vet: %v\n%s", err, out)
	}
	w.lockgen(1, []string{touches, replaces}, "-only", "Carts, ReplaceLine")
	w.lockgen(1, []string{"-only acounts: no query has that name, and no family is marked by //lockstep:table acounts(...)"}, "-only", "acounts")
	w.lockgen(2, []string{`-only "accounts,," has an empty name`}, "-only", "accounts,,")
	w.lockgen(2, []string{"-only is not for -front"}, "-only", "accounts", "-front", w.root)
	if w.exists(written) {
		t.Error("the output of before is still there")
	}
}

// TestOnlyHas proves that a query which can't be parsed is asked for where it names the table.
func TestOnlyHas(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"CALL pay('x')": false, "CALL pay(accounts)": true, "TRUNCATE `Accounts`": true, "TRUNCATE my_accounts": false, "TRUNCATE shop.accounts": true,
	} {
		q := &query{source: &source{name: "Pay"}, method: &method{sql: sql}}
		if has := (only{"accounts", "Glance"}).has(q); has != want {
			t.Errorf("%s: %t, want %t", sql, has, want)
		}
		if !(only{"Pay"}).has(q) || !(only(nil)).has(q) {
			t.Errorf("%s: a query that is named, and each without -only, must say its locks", sql)
		}
	}
}
