package job

import "time"

// stopwatch measures by the monotonic clock. It is the only use that this package has of
// the machine's clock: which time it is, only the server says.
type stopwatch struct{ begun time.Time }

// machine is the machine's clock; tests set it wrong.
var machine = time.Now

func newStopwatch() stopwatch { return stopwatch{machine()} }

func (s stopwatch) elapsed() time.Duration { return machine().Sub(s.begun) }
