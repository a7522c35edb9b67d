// Package idempotent is what locksqlc and lockgorm share of Once: results that are stored
// beside the key, and the HTTP handler that answers a repeated request as the first one.
package idempotent
