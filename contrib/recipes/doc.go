// Package recipes has the recipes of docs/how-to/jobs.md for schedulers that need no adapter, and
// sales in the transactions of ent, bun and sqlx: what is shown is in the tests. It is a module
// of its own, so that nobody else compiles these libraries.
package recipes
