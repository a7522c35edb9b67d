package bridge

import "context"

// Unsent is the context of a statement that isn't sent: it has ended with the error.
func Unsent(ctx context.Context, err error) context.Context { return unsent{ctx, err} }

type unsent struct {
	context.Context
	err error
}

func (unsent) Done() <-chan struct{} { return closed }
func (u unsent) Err() error          { return u.err }

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
