package authors

import "github.com/dca00107/lockstep/txlock"

//lockstep:table authors(id)
var Authors = txlock.NewFamily[int64]("author")
