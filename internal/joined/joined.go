// Package joined joins errors where there are several.
package joined

import "errors"

// Errors is errors.Join, but a single error stays what it is: the error of a program's
// function can be compared by == where nothing else has failed.
func Errors(errs ...error) error {
	var only error
	for _, err := range errs {
		switch {
		case err == nil:
		case only != nil:
			return errors.Join(errs...)
		default:
			only = err
		}
	}
	return only
}
