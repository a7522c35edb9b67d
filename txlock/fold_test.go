package txlock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestFoldWritesKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ collation, id, want string }{
		{"utf8mb4_general_ci", "Bob ", "f:bob"},
		{"utf8mb4_0900_ai_ci", "Bob", "f:bob"},
		{"utf8mb4_0900_as_cs", "Bob", "f:Bob"},
		{"utf8mb4_bin", "Jörg  ", "f:Jörg"},
		{"utf8mb4_nopad_bin", " Jörg", "f: Jörg"},
		{"latin1_bin", "B ob ", "f:B ob"},
	} {
		if key := NewFamily[string]("f", Fold(c.collation)).Key(c.id); key.String() != c.want || key.Validate() != nil {
			t.Errorf("%s: %q has the key %q (%v), want %q", c.collation, c.id, key, key.Validate(), c.want)
		}
	}
	if key := NewFamily[country]("f", Fold("utf8mb4_general_ci"), Hashed(), In("shop")).Key("DE"); key.String() != "@shop/f:de" || !key.Hashed() {
		t.Errorf("the key is %q", key)
	}
}

func TestFoldRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key  Key
		want string
	}{
		"a letter outside of ASCII": {NewFamily[string]("f", Fold("utf8mb4_general_ci")).Key("Jörg"), "only of printable ASCII"},
		"a control character":       {NewFamily[string]("f", Fold("utf8mb4_0900_as_cs")).Key("a\x01"), "only of printable ASCII"},
		"a blank without padding":   {NewFamily[string]("f", Fold("utf8mb4_0900_bin")).Key("a "), "a blank at the end"},
		"nothing but blanks":        {NewFamily[string]("f", Fold("utf8mb4_bin")).Key("  "), "empty text"},
		"of one language":           {NewFamily[string]("f", Fold("utf8mb4_turkish_ci")).Key("a"), "doesn't know the collation utf8mb4_turkish_ci"},
		"no string":                 {NewFamily[int]("f", Fold("utf8mb4_bin")).Key(1), "families of strings"},
		"a Stringer":                {NewStringerFamily[country]("f", Fold("utf8mb4_bin")).Key("DE"), "families of strings"},
	} {
		if err := c.key.Validate(); !errors.Is(err, ErrInvalidKey) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestFold proves that two strings have one key where the server takes them for one, and
// only there: of all pairs of texts, in columns of VARCHAR and of CHAR.
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
		if known < 12 {
			t.Errorf("the server knows %d of the collations", known)
		}
	})
}

// foldTexts are short texts: of any one character, and of some that collations treat
// unlike others. In full they are of any two.
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

// compareFolds compares the keys of texts with a server's comparisons. It returns false
// where the server doesn't know the collation.
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
	if len(rows) < 150 {
		t.Fatalf("%s folds %d texts", collation, len(rows))
	}
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
