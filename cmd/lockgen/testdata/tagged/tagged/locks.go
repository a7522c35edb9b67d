//go:build tagged

package tagged

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/cmd/lockgen/testdata/keys"
	"github.com/dca00107/lockstep/txlock"
)

// LineID is the key of a line of an order.
type LineID struct {
	OrderID uint64
	Line    int32
}

func (l LineID) String() string { return fmt.Sprintf("%d-%d", l.OrderID, l.Line) }

//lockstep:table accounts(id)
var Accounts = txlock.NewFamily[int64]("account")

var (
	//lockstep:table products(sku)
	Products = keys.Products
	//lockstep:table orders(id)
	Orders = txlock.NewFamily[uint64]("order", txlock.Hashed())
)

//lockstep:table order_lines(order_id, line)
var Lines = txlock.NewStringerFamily[LineID]("line", txlock.Hashed())

//lockstep:table carts(id)
var Carts = txlock.NewFamily[uuid.UUID]("cart", txlock.Hashed())
