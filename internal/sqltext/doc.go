// Package sqltext reads the text of SQL statements as far as the library must know what
// they are: their first words and the names in them, without comments and quoted text.
//
// # In order of reading
//
//   - sqltext.go: [Next] separates statements, [Words] returns the first words of one,
//     [Mentions] and [SavepointName] find identifiers.
//   - closed.go: [Closed] reports whether a part of a statement means the same wherever it
//     stands; [Cut] cuts a statement at a word, [Calls] and [Unquoted] look into it.
//
// # What it is not
//
// It is no parser of SQL. Where the two servers, or their SQL modes, read a text
// differently, it says that it doesn't know, and its callers take the safe side.
package sqltext
