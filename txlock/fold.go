package txlock

import (
	"reflect"
	"slices"
	"strings"
)

// Fold makes one key of all strings that a column takes for one row: keys are compared byte
// by byte, and a column by its collation, in which "Bob" and "bob" may be equal. It is for
// families of NewFamily whose identifiers are strings, and takes the name of the column's
// collation, "utf8mb4_0900_ai_ci". Blanks at the end are cut off where the collation pads
// (PAD SPACE); letters become small where it ignores case.
//
// What it can't fold exactly as the server compares it makes a key that every call refuses
// with ErrInvalidKey: all but printable ASCII, unless the collation is a binary one; a
// blank at the end under a collation that doesn't pad, which columns of CHAR drop and
// others keep; anything under a collation that Fold doesn't know, as those of one language
// are. A column that needs none of this is VARBINARY, or VARCHAR under a binary collation
// that doesn't pad: utf8mb4_0900_bin of MySQL, utf8mb4_nopad_bin of MariaDB.
//
// The default is no folding: strings are equal byte by byte. All programs that share a
// family fold it in one way.
func Fold(collation string) FamilyOption {
	return func(o *familyOptions) { o.folds, o.collation = true, collation }
}

// folding is how a collation compares.
type folding struct {
	pads   bool // blanks at the end don't count
	cased  bool // letters of two cases are two
	binary bool // and so are any two characters
}

// The foldings of collations, which TestFold compares with the servers'.
var foldings = map[folding][]string{
	{pads: true, cased: true, binary: true}: {"utf8mb4_bin"},
	{cased: true, binary: true}:             {"utf8mb4_0900_bin", "utf8mb4_nopad_bin"},
	{pads: true, cased: true}:               {"ascii_bin", "latin1_bin", "utf8mb3_bin", "utf8mb4_uca1400_as_cs"},
	{cased: true}:                           {"utf8mb4_0900_as_cs", "utf8mb4_uca1400_nopad_as_cs"},
	{pads: true}: {
		"ascii_general_ci", "latin1_general_ci", "latin1_swedish_ci", "utf8mb3_general_ci", "utf8mb3_unicode_ci",
		"utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", "utf8mb4_uca1400_ai_ci", "utf8mb4_uca1400_as_ci",
	},
	{}: {
		"utf8mb4_0900_ai_ci", "utf8mb4_0900_as_ci", "utf8mb4_general_nopad_ci", "utf8mb4_unicode_nopad_ci",
		"utf8mb4_unicode_520_nopad_ci", "utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_uca1400_nopad_as_ci",
	},
}

// fold returns a function that folds a text, or says why it can't.
func (o *familyOptions) fold(id reflect.Type) func(text string) (folded, bad string) {
	none := func(bad string) func(string) (string, string) {
		return func(text string) (string, string) { return text, bad }
	}
	if !o.folds {
		return none("")
	}
	if id == nil || id.Kind() != reflect.String {
		return none("Fold is for families of strings that NewFamily makes")
	}
	for f, names := range foldings {
		if slices.Contains(names, o.collation) {
			return f.fold
		}
	}
	return none("Fold doesn't know the collation " + o.collation + ": make the column VARBINARY, or VARCHAR with a binary collation")
}

func (f folding) fold(text string) (folded, bad string) {
	if !f.binary && strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		return text, "Fold knows only of printable ASCII what the collation takes for one: make the column VARBINARY, or VARCHAR with a binary collation"
	}
	folded = strings.TrimRight(text, " ")
	if !f.pads && folded != text {
		return text, "a blank at the end counts in columns of VARCHAR and not in those of CHAR: cut it off, or make the column VARBINARY"
	}
	if !f.cased {
		folded = strings.ToLower(folded)
	}
	return folded, ""
}
