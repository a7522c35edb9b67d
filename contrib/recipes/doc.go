// Package recipes has the programs of docs/how-to/use-it-with.md, and those of
// docs/how-to/jobs.md for schedulers that need no adapter: what is shown is in the tests. It is
// a module of its own, so that no other module compiles these libraries.
package recipes
