package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// eachEngine runs a test on every engine, with the DSN of an administrator.
func eachEngine(t *testing.T, test func(t *testing.T, engine, dsn string)) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		test(t, string(engine), testdb.Shared(t, engine).Config().FormatDSN())
	})
}

// small has a stock that can't be divided evenly, so that rests have to be collected.
var small = config{buyers: 40, connections: 12, stock: 211, most: 7, takes: time.Millisecond, segments: []int{1, 4, 16}}

// TestSalesSellTheStock proves that every sale sells its stock to the last item and no
// item twice, that rests are collected from several segments, and that the table and the
// chart say so.
func TestSalesSellTheStock(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine, dsn string) {
		variable := "LOCKSTEP_" + strings.ToUpper(engine) + "_DSN"
		directory := t.TempDir()
		var out bytes.Buffer
		err := start(t.Context(), small, func(name string) string {
			if name == variable {
				return dsn
			}
			return ""
		}, directory, &out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		t.Log("\n" + out.String())
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2+len(small.segments) {
			t.Fatalf("%d lines", len(lines))
		}
		for i, segments := range []string{"1", "4", "16"} {
			if columns := strings.Fields(lines[2+i]); len(columns) != 6 || columns[0] != segments || columns[1] != "211" {
				t.Errorf("line %q", lines[2+i])
			}
		}
		drawing, err := os.ReadFile(filepath.Join(directory, "flashsale-"+engine+".svg"))
		check(t, err)
		bars := wellFormed(t, drawing)["rect"] - 1 // the ground
		if bars != len(small.segments) {
			t.Errorf("%d bars in\n%s", bars, drawing)
		}
	})
}

// wellFormed reads XML to its end, and counts its elements.
func wellFormed(t *testing.T, text []byte) map[string]int {
	t.Helper()
	elements := make(map[string]int)
	for decoder := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return elements
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if element, ok := token.(xml.StartElement); ok {
			elements[element.Name.Local]++
		}
	}
}

// TestRestIsCollected proves that a purchase for which no segment has enough takes its
// items from several, that the last one takes what is left, and that then nothing is.
func TestRestIsCollected(t *testing.T) {
	eachEngine(t, func(t *testing.T, _, dsn string) {
		database, err := scratch.New(t.Context(), dsn, ddl)
		check(t, err)
		t.Cleanup(func() { check(t, database.Drop()) })
		lone := config{buyers: 1, connections: 2, stock: 8, most: 5, segments: []int{4}}
		s, err := newSale(t.Context(), lone, database, 4) // two in each
		check(t, err)
		t.Cleanup(func() { check(t, s.db.Close()) })
		for i, want := range []struct {
			items int64
			err   error
		}{{2, nil}, {5, nil}, {5, nil}, {1, errSoldOut}} {
			wants(t, fmt.Sprintf("purchase %d of %d items", i, want.items), s.buy(t.Context(), want.items), want.err)
		}
		var r result
		check(t, s.count(t.Context(), &r))
		if r.purchases != 3 || r.collected != 1 {
			t.Errorf("%d purchases, %d of which from several segments, want 3 and 1", r.purchases, r.collected)
		}
		_, err = database.Pool().Exec("UPDATE stock SET items = 1 WHERE segment = 2")
		check(t, err)
		leasetest.Fails(t, "count of a shop that has an item left", s.count(t.Context(), &r))
	})
}

// TestInterruptedSale proves that the end of the context ends the sale with an error,
// and leaves no transaction open that the drop of the database would wait for.
func TestInterruptedSale(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine, dsn string) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		endless := small
		endless.stock, endless.most = 1<<40, 1
		file := filepath.Join(t.TempDir(), "chart.svg")
		wants(t, "onServer", onServer(ctx, endless, engine, dsn, file, io.Discard), context.DeadlineExceeded)
		_, err := os.Stat(file)
		leasetest.Fails(t, "the chart", err)
	})
}

// TestStart proves that the program says what it needs where there is no server.
func TestStart(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	wants(t, "start", start(t.Context(), small, none, t.TempDir(), io.Discard), errNoServer)
	bad := func(string) string { return "not a data source name" }
	err := start(t.Context(), small, bad, t.TempDir(), io.Discard)
	leasetest.Fails(t, "start", err, "LOCKSTEP_MARIADB_DSN")
}

var check, wants = leasetest.Must, leasetest.Wants
