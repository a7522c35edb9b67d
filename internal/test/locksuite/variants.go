package locksuite

import (
	"database/sql"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/txlock"
)

// variant is a setting of the driver and an isolation level.
type variant struct {
	name         string
	interpolates bool
	set          func(*mysql.Config)
	level        sql.IsolationLevel
}

var variants = func() (all []variant) {
	for _, interpolate := range []bool{false, true} {
		for _, found := range []bool{false, true} {
			for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted} {
				all = append(all, variant{
					name:         fmt.Sprintf("interpolate=%t,found=%t,%s", interpolate, found, level),
					interpolates: interpolate,
					set: func(c *mysql.Config) {
						c.InterpolateParams, c.ClientFoundRows = interpolate, found
						c.Logger = &mysql.NopLogger{} // connections are broken on purpose
					},
					level: level,
				})
			}
		}
	}
	return all
}()

// kind is a kind of key: each behaves alike.
type kind struct {
	name   string
	family txlock.Family[int64]
	// apart is a family whose rows are no neighbours of the first one's. When a
	// page of the index splits before a locked row, the server locks the gap
	// before it, too: a row that was removed there by a rollback can't be made
	// again until the neighbour is free.
	apart  txlock.Family[int64]
	ensure bool
}

var kinds = []kind{
	{name: "fresh", family: txlock.NewFamily[int64]("fresh"), apart: txlock.NewFamily[int64]("later")},
	{name: "ensured", family: txlock.NewFamily[int64]("ensured"), apart: txlock.NewFamily[int64]("later"), ensure: true},
	{name: "hashed", family: hashed, apart: hashed},
}

var hashed = txlock.NewFamily[int64]("hashed", txlock.Hashed())

// met are the kinds of keys with which an adapter and a variant, by their places, are run.
// A variant has three settings, and meets an adapter and a kind together with its
// opposite, in which all three differ. So with four adapters any three of the adapter, the
// kind and the settings are run in all their combinations, by a quarter of the product.
// Unless the run is a long one, the other adapters than the first meet one of the two: any
// two are run in all their combinations.
func met(adapter, variant int, long bool) (all []kind) {
	interpolates := variant >= len(variants)/2
	pair := min(variant, len(variants)-1-variant)
	for k, kind := range kinds {
		if (adapter+k)%(len(variants)/2) == pair && (long || adapter == 0 || interpolates == (k <= adapter%2)) {
			all = append(all, kind)
		}
	}
	return all
}
