// Package joined joins errors, but leaves a single error as it is; see [Errors].
package joined
