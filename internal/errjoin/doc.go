// Package errjoin joins errors, but leaves a single error as it is ([Errors]), and drops those
// of closing what is gone ([UnlessGone]).
package errjoin
