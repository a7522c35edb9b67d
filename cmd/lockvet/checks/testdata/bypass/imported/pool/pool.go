// Package pool opens two pools.
package pool

import (
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/lockgorm"
)

// Primary is a pool.
var Primary, _ = lockgorm.Open("primary", &gorm.Config{NamingStrategy: schema.NamingStrategy{
	TablePrefix: "shop.t_", SingularTable: true, NameReplacer: strings.NewReplacer("Person", "Human"),
}})

// Replica is another.
var Replica, _ = lockgorm.Open("replica", &gorm.Config{NamingStrategy: schema.NamingStrategy{
	TablePrefix: "shop.t_", SingularTable: true, NameReplacer: strings.NewReplacer("Person", "Human"),
}})
