package booktest

import "github.com/dca00107/lockstep/txlock"

//lockstep:table books(book_id)
var Books = txlock.NewFamily[int32]("book")
