package singular

import "github.com/dca00107/lockstep/lockgorm"

// The pool of a test is not the program's.
var _, _ = lockgorm.Open("test")
