package errjoin

import "errors"

// Errors joins errors as errors.Join does, but returns a single error unchanged: if
// nothing else has failed, the error of a program's function can still be compared by ==.
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
