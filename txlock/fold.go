package txlock

import (
	"reflect"
	"slices"
	"strings"
)

// Fold makes one key of all strings that a column considers equal: keys are compared byte by byte,
// but a column by its collation, in which "Bob" and "bob" may be equal. It is for families of
// NewFamily whose identifiers are strings, and takes the name of the column's collation,
// "utf8mb4_0900_ai_ci". Fold removes blanks at the end if the collation pads (PAD SPACE), and
// converts letters to lower case if it ignores case.
//
// A string that Fold can't fold exactly as the server compares it makes a key that every call
// refuses with ErrInvalidKey: everything but printable ASCII, unless the collation is a binary
// one; and a blank at the end under a collation that doesn't pad, which columns of CHAR drop and
// others keep. So does every string under a collation that Fold doesn't know, such as those of one
// language. A column that needs none of this is VARBINARY, or VARCHAR under a binary collation
// that doesn't pad: utf8mb4_0900_bin of MySQL, utf8mb4_nopad_bin of MariaDB; its family has Exact.
//
// All programs that share a family must fold it in the same way. Family.CheckColumns compares that
// with the table.
func Fold(collation string) FamilyOption {
	return func(o *familyOptions) {
		o.twice = o.folds && o.collation != collation
		o.folds, o.collation = true, collation
	}
}

// Exact makes a key of each text as it is: texts with different bytes have different keys. It is
// for columns that compare bytes, such as VARBINARY, and for texts that have only one spelling,
// such as the codes of an enumeration. For any other column it would give one row several keys,
// which don't exclude each other: "Bob" and "bob". Family.CheckColumns compares it with the table.
func Exact() FamilyOption { return func(o *familyOptions) { o.exact = true } }

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

// fold returns a function that folds a text, or says why it can't. Stringer says that the
// identifiers write themselves.
func (o *familyOptions) fold(id reflect.Type, stringer bool) func(text string) (folded, bad string) {
	none := func(bad string) func(string) (string, string) {
		return func(text string) (string, string) { return text, bad }
	}
	switch {
	case o.folds && (stringer || id.Kind() != reflect.String):
		return none("Fold is for families of strings that NewFamily makes")
	case o.twice:
		return none("Fold is given twice, with two collations: leave one of them out")
	case o.folds && o.exact:
		return none("Fold and Exact are two ways to compare texts: leave one of them out")
	case !o.folds && !o.exact && hasTexts(id):
		if stringer {
			return none("the family says nothing of how the columns compare its texts: make it with txlock.Exact if they compare bytes, as VARBINARY does, or write a fixed spelling by String")
		}
		return none(`the family says nothing of how the column compares its texts, to which Bob and bob may be one row: make it with txlock.Fold("utf8mb4_0900_ai_ci"), naming the collation of the column, or with txlock.Exact if the column compares bytes, as VARBINARY does`)
	case !o.folds:
		return none("")
	}
	for f, names := range foldings {
		if slices.Contains(names, o.collation) {
			return f.fold
		}
	}
	return none("Fold doesn't know the collation " + o.collation + ": make the column VARBINARY, or VARCHAR with a binary collation")
}

// hasTexts reports whether identifiers of this type have, or may have, texts in them: all
// but integers, UUIDs, and what is made of these alone.
func hasTexts(id reflect.Type) bool {
	switch {
	case id.Kind() >= reflect.Bool && id.Kind() <= reflect.Uintptr: // and the integers
		return false
	case id.Kind() == reflect.Array:
		return hasTexts(id.Elem())
	case id.Kind() == reflect.Struct:
		for i := range id.NumField() {
			if hasTexts(id.Field(i).Type) {
				return true
			}
		}
		return false
	}
	return true
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
