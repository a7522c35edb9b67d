package txlock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// status is a number that writes itself otherwise, as enumerations do.
type status int32

func (status) String() string { return "a status" }

// level is the same without a sign.
type level uint16

func (level) String() string { return "a level" }

// country is a string that writes itself otherwise.
type country string

func (c country) String() string { return "country of " + string(c) }

// place is an identifier of two parts.
type place struct{ aisle, shelf int }

func (p place) String() string {
	if p.aisle < 0 {
		return ""
	}
	return strconv.Itoa(p.aisle) + "-" + strconv.Itoa(p.shelf)
}

// row is an identifier of a text.
type row struct{ name string }

func (r row) String() string { return r.name }

var id = uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

// TestFamilyWritesKeys shows how keys are written: of families of all types, of namespaces, of segments, and of texts whose comparison is said.
func TestFamilyWritesKeys(t *testing.T) {
	t.Parallel()
	const shop, long = Namespace("shop"), Namespace("0123456789012345678901234567890123456789012345678901234567890123")
	type written struct {
		key  Key
		want string
	}
	for hashed, all := range map[bool][]written{
		false: {
			{NewFamily[int]("f").Key(-7), "f:-7"},
			{NewFamily[int32]("f").Key(2147483647), "f:2147483647"},
			{NewFamily[int64]("f").Key(-9223372036854775808), "f:-9223372036854775808"},
			{NewFamily[uint8]("f").Key(255), "f:255"},
			{NewFamily[uint64]("f").Key(18446744073709551615), "f:18446744073709551615"},
			{NewFamily[status]("f").Key(3), "f:3"},
			{NewFamily[level]("f").Key(3), "f:3"},
			{NewFamily[string]("f", Exact()).Key("aB "), "f:aB "},
			{NewFamily[string]("f", Exact()).Key("a:b"), "f:a:b"},
			{NewFamily[country]("f", Exact()).Key("ch"), "f:ch"},
			{NewFamily[country]("f", Fold("utf8mb4_bin")).Key("a"), "f:a"},
			{NewFamily[uuid.UUID]("f").Key(id), "f:6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
			{NewStringerFamily[uuid.UUID]("f").Key(id), "f:6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
			{NewStringerFamily[place]("f").Key(place{2, 9}), "f:2-9"},
			{NewStringerFamily[row]("f", Exact()).Key(row{"a"}), "f:a"},
			{NewStringerFamily[time.Duration]("f").Key(1), "f:1ns"},
			{NewStringerFamily[status]("f").Key(3), "f:a status"},
			{NewFamily[string]("f", Exact()).Key(strings.Repeat("k", 253)), "f:" + strings.Repeat("k", 253)},
			{Named(" job "), " job "},
			{Named("a\x00b"), "a\x00b"},
			{Named(strings.Repeat("k", 255)), strings.Repeat("k", 255)},
			{shop.Named("order:42"), "@shop/order:42"},
			{NewFamily[int]("order", In(shop)).Key(42), "@shop/order:42"},
			{NewStringerFamily[time.Duration]("every", In(shop)).Key(time.Second), "@shop/every:1s"},
			{Segments(shop.Named("p"), 2)[1], "@shop/p#2"},
			{Segments(NewFamily[int64]("product").Key(7), 3)[2], "product:7#3"},
			{shop.Named("@bank/x"), "@shop/@bank/x"},
			{shop.Named("lockstep:x"), "@shop/lockstep:x"},
			{Namespace("Büro : 1").Named("x"), "@Büro : 1/x"},
			{long.Named(strings.Repeat("k", 189)), "@" + string(long) + "/" + strings.Repeat("k", 189)},
			{NewFamily[string]("f", Fold("utf8mb4_general_ci")).Key("Bob "), "f:bob"},
			{NewFamily[string]("f", Fold("utf8mb4_0900_ai_ci")).Key("Bob"), "f:bob"},
			{NewFamily[string]("f", Fold("utf8mb4_0900_as_cs")).Key("Bob"), "f:Bob"},
			{NewFamily[string]("f", Fold("utf8mb4_bin")).Key("Jörg  "), "f:Jörg"},
			{NewFamily[string]("f", Fold("utf8mb4_nopad_bin")).Key(" Jörg"), "f: Jörg"},
			{NewFamily[string]("f", Fold("latin1_bin")).Key("B ob "), "f:B ob"},
		},
		true: {
			{NewFamily[int]("order", Hashed(), In(shop)).Key(42), "@shop/order:42"},
			{NewFamily[country]("f", Fold("utf8mb4_general_ci"), Hashed(), In(shop)).Key("DE"), "@shop/f:de"},
			{Segments(NewFamily[int64]("lot", Hashed()).Key(7), 2)[1], "lot:7#2"},
		},
	} {
		for _, c := range all {
			if err := c.key.Validate(); err != nil || c.key.String() != c.want || c.key.Hashed() != hashed {
				t.Errorf("the key is %q (hashed: %t), want %q; Validate: %v", c.key, c.key.Hashed(), c.want, err)
			}
			again := ParseKey(c.want)
			testdb.ErrorIf(t, !hashed && again != c.key, "ParseKey(%q) is another key: %v", c.want, again.Validate())
		}
	}
}

// TestInvalidKeys: keys that can't be are refused with a reason, and so are texts whose comparison isn't said or known.
func TestInvalidKeys(t *testing.T) {
	t.Parallel()
	const shop = Namespace("shop")
	var noFamily Family[int64]
	var noID uuid.UUID
	for _, c := range []struct {
		key  Key
		says string
	}{
		{Key{}, "the zero Key"},
		{Named(""), "the name is empty"},
		{Named(strings.Repeat("k", 256)), "256 bytes, 255 are allowed"},
		{Named("caf\xe9"), "not valid UTF-8"},
		{Named("lockstep:cleanup"), "lockstep's own"},
		{NewFamily[int]("lockstep").Key(1), "lockstep's own"},
		{Segments(Named("lockstep:x"), 2)[0], "lockstep's own"},
		{Named("\xed\xa0\x80"), "not valid UTF-8"}, // half a surrogate pair
		{NewFamily[int]("f").Key(0), "the zero identifier"},
		{NewFamily[uint8]("f", Hashed()).Key(0), "the zero identifier"},
		{NewFamily[string]("f", Exact()).Key(""), "the zero identifier"},
		{NewFamily[uuid.UUID]("f").Key(noID), "the zero identifier"},
		{NewStringerFamily[place]("f").Key(place{}), "the zero identifier"},
		{NewStringerFamily[place]("f").Key(place{-1, 0}), "empty text"},
		{NewFamily[string]("f", Exact()).Key(strings.Repeat("k", 254)), "256 bytes, 255 are allowed"},
		{NewFamily[string]("f", Exact()).Key("caf\xe9"), "not valid UTF-8"},
		{NewFamily[string]("", Exact()).Key("a"), "empty or has a colon"},
		{NewFamily[string]("a:b", Exact()).Key("c"), "empty or has a colon"},
		{NewFamily[int]("a:b").Key(0), "the zero identifier"},
		{noFamily.Key(1), "the zero Family"},

		{Namespace("").Named("x"), "the namespace is empty"},
		{Namespace(strings.Repeat("n", 255)).Named("x"), "the namespace has 255 bytes, 64 are allowed"},
		{Namespace("caf\xe9").Named("x"), "the namespace is not valid UTF-8"},
		{Namespace("a/b").Named("x"), `the namespace "a/b" has a slash`},
		{NewFamily[int]("f", In("")).Key(1), "the namespace is empty"},
		{NewFamily[int]("a:b", In(shop)).Key(1), "empty or has a colon"},
		{NewFamily[int]("@f", In(shop)).Key(1), "those of a Namespace"},
		{NewFamily[int]("f", In(shop)).Key(0), "the zero identifier"},
		{shop.Named(""), "the name is empty"},
		{shop.Named(strings.Repeat("k", 250)), "256 bytes, 255 are allowed"},
		{Named("@shop/order:42"), "those of a Namespace"},
		{Named("@"), "those of a Namespace"},
		{Segments(Named("@shop/x"), 2)[1], "those of a Namespace"},
		{ParseKey("@shop"), "the name is empty"},
		{ParseKey("lockstep:x"), "lockstep's own"},

		{Segments(Named("p"), 0)[0], ""},
		{Segments(Named("p"), 1001)[0], ""},
		{Segments(NewFamily[int64]("product").Key(0), 2)[1], "the zero identifier"},
		{Segments(Key{}, 2)[1], "the key has no name"},
		{Segments(Named(strings.Repeat("x", 254)), 10)[9], "257 bytes, 255 are allowed"},

		{NewFamily[string]("f").Key("a"), `txlock.Fold("utf8mb4_0900_ai_ci")`},
		{NewFamily[string]("f").Key("a"), "txlock.Exact"},
		{NewFamily[country]("f", Hashed()).Key("a"), "txlock.Exact"},
		{NewStringerFamily[row]("f").Key(row{"a"}), "txlock.Exact"},
		{NewStringerFamily[time.Time]("f").Key(time.Unix(1, 0)), "txlock.Exact"}, // of a place and an offset
		{NewFamily[string]("f", Exact(), Fold("utf8mb4_bin")).Key("a"), "leave one of them out"},

		{NewFamily[string]("f", Fold("utf8mb4_general_ci")).Key("Jörg"), "only of printable ASCII"},
		{NewFamily[string]("f", Fold("utf8mb4_0900_as_cs")).Key("a\x01"), "only of printable ASCII"},
		{NewFamily[string]("f", Fold("utf8mb4_0900_bin")).Key("a "), "a blank at the end"},
		{NewFamily[string]("f", Fold("utf8mb4_bin")).Key("  "), "empty text"},
		{NewFamily[string]("f", Fold("utf8mb4_turkish_ci")).Key("a"), "doesn't know the collation utf8mb4_turkish_ci"},
		{NewFamily[int]("f", Fold("utf8mb4_bin")).Key(1), "families of strings"},
		{NewStringerFamily[country]("f", Fold("utf8mb4_bin")).Key("DE"), "families of strings"},
	} {
		err := c.key.Validate()
		testdb.ErrorIf(t, !errors.Is(err, ErrInvalidKey) || !strings.Contains(err.Error(), c.says) || len(c.key.String()) > 200 && len(err.Error()) > 200,
			"the key %q: %v, want ErrInvalidKey that says %q", c.key, err, c.says)
	}
}

// TestFold: two strings have one key where the server takes them for one, and only there, in VARCHAR and CHAR.
func TestFold(t *testing.T) {
	OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db, known := testdb.Open(t, engine), 0
		for _, names := range foldings {
			for _, collation := range names {
				if compareFolds(t, db, collation) {
					known++
				}
			}
		}
		testdb.ErrorIf(t, known < 12, "the server knows %d of the collations", known)
	})
}

// foldTexts are short texts: of any one character, and of some that collations treat unlike others. In full they are of any two.
func foldTexts() map[string]bool {
	texts := map[string]bool{}
	some := []rune("aAbBsSzZiIcChHlLnNjJ@[`{_-'0  äÄöÖßſıİ\u00a0\u0301\x01\x00\t💔💚")
	for a := ' '; a <= '~'; a++ {
		texts[string(a)] = true
		for b := ' '; b <= '~' && os.Getenv("LOCKSTEP_LONG") == "1"; b++ {
			texts[string(a)+string(b)] = true
		}
	}
	random := rand.New(rand.NewPCG(testdb.Seed(), 0))
	for range 400 {
		text := make([]rune, 1+random.IntN(4))
		for i := range text {
			text[i] = some[random.IntN(len(some))]
		}
		texts[string(text)] = true
	}
	return texts
}

// compareFolds compares the keys of texts with a server's comparisons. It returns false where the server doesn't know the collation.
func compareFolds(t *testing.T, db *testdb.DB, collation string) bool {
	t.Helper()
	charset, _, _ := strings.Cut(collation, "_")
	_, err := db.Admin().ExecContext(t.Context(), "DO CONVERT('a' USING "+charset+") COLLATE "+collation)
	if refused := (*mysql.MySQLError)(nil); errors.As(err, &refused) && refused.Number == 1273 {
		return false
	}
	check(t, err)
	text := "(8) CHARACTER SET " + charset + " COLLATE " + collation
	table := db.CreateTable(t, "fold", "s VARCHAR"+text+", c CHAR"+text+", k VARBINARY(64), KEY (s), KEY (c), KEY (k)")
	family := NewFamily[string]("f", Fold(collation))
	var rows []string
	var args []any
	for text := range foldTexts() {
		key := family.Key(text)
		if key.Validate() != nil {
			continue
		}
		rows, args = append(rows, "(?, ?, ?)"), append(args, text, text, key.String())
	}
	testdb.FatalIf(t, len(rows) < 150, "%s folds %d texts", collation, len(rows))
	for len(rows) > 0 {
		n := min(len(rows), 5000)
		_, err := db.Admin().ExecContext(t.Context(), "INSERT INTO "+table+" (s, c, k) VALUES "+strings.Join(rows[:n], ","), args[:3*n]...)
		check(t, err)
		rows, args = rows[n:], args[3*n:]
	}
	for _, unlike := range []string{"a.s = b.s AND a.k <> b.k", "a.c = b.c AND a.k <> b.k", "a.k = b.k AND a.s <> b.s", "a.k = b.k AND a.c <> b.c"} {
		var pairs int
		var one, other *string
		query := fmt.Sprintf("SELECT COUNT(*), MIN(HEX(a.s)), MIN(HEX(b.s)) FROM %[1]s a JOIN %[1]s b ON %[2]s", table, unlike)
		check(t, db.Admin().QueryRowContext(t.Context(), query).Scan(&pairs, &one, &other))
		if pairs > 0 {
			t.Errorf("%s: %d pairs have %s, such as 0x%s and 0x%s", collation, pairs, unlike, *one, *other)
		}
	}
	return true
}

// FuzzKeyOnServers: any name makes a key that is refused with the reason, or names its row and no other on the servers.
func FuzzKeyOnServers(f *testing.F) {
	for _, name := range []string{"", "order:42", "Job", "job ", "Jöb", "a\x00b", "\xff", "'; --", `quote ' and \ back`, "Zürich:日本語:🔒", "%", "@", "@shop/x", strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("ö", 128)} {
		f.Add(name)
	}
	family := NewFamily[string]("fuzz", Hashed(), Exact())
	for _, engine := range testdb.Engines() {
		testdb.Open(f, engine) // which takes longer than an input may
	}
	f.Fuzz(func(t *testing.T, name string) {
		key, record := Named(name), family.Key(name)
		valid := name != "" && len(name) <= 255 && utf8.ValidString(name) && name[0] != '@' // of a Namespace
		if err := key.Validate(); (err == nil) != valid || err != nil && !errors.Is(err, ErrInvalidKey) {
			t.Fatalf("%q: %v", name, err)
		}
		testdb.ErrorIf(t, key.String() != name || key != Named(name) || valid && key == Named(name+" "), "%q is %q", name, key)
		testdb.ErrorIf(t, record.Validate() == nil && record.String() != "fuzz:"+name, "the key of %q is %q", name, record)
		id := len(name) // some number
		for _, key := range []Key{
			key, record, NewFamily[string](name, Exact()).Key(name), NewFamily[country]("fuzz", Exact()).Key(country(name)),
			NewFamily[int64](name).Key(int64(id)), NewFamily[status](name).Key(status(id)), NewFamily[level](name).Key(level(id)),
			NewFamily[uuid.UUID](name).Key(uuid.UUID([]byte((name + strings.Repeat("\x00", 16))[:16]))), NewStringerFamily[place](name).Key(place{id, 1}),
		} {
			switch err, n := key.Validate(), len(key.String()); {
			case err != nil && !errors.Is(err, ErrInvalidKey):
				t.Errorf("%q is refused with %v", key, err)
			case err == nil && (n < 1 || n > 255 || !utf8.ValidString(key.String())):
				t.Errorf("the valid key %q has %d bytes", key, n)
			case err == nil && (key.Hashed() != key.record().hashed || !key.Hashed() && key.record().name != key.String()):
				t.Errorf("the key %q locks %+v", key, key.record())
			}
		}
		typed := NewFamily[country]("fuzz", Exact()).Key(country(name))
		testdb.ErrorIf(t, typed.String() != record.String(), "the string %q and its named type make %q and %q", name, record, typed)
		if !valid {
			return
		}
		for _, engine := range testdb.Engines() {
			pool := testdb.Open(t, engine).Admin()
			if err := Ensure(t.Context(), pool, key); err != nil {
				t.Fatalf("Ensure(%q): %v", name, err)
			}
			var slot uint16
			var kept string
			err := pool.QueryRowContext(t.Context(), "SELECT name, CRC32(name) % 65536 FROM lockstep_locks WHERE name = ?", []byte(name)).Scan(&kept, &slot)
			testdb.ErrorIf(t, err != nil || kept != name || slot != key.Slot(),
				"%s keeps %q as %q in slot %d, want %d: %v", engine, name, kept, slot, key.Slot(), err)
		}
	})
}
