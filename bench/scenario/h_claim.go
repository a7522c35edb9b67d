package scenario

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/bench/stats"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// claim is a queue in a table, of which each worker takes the first row that is free.
var claim = Scenario{
	Letter: "h",
	Title:  "The next row of a queue",
	About: "8 workers claim the first unclaimed row of 1,024, by GORM. UPDATE does it with ORDER BY id LIMIT 1, on a plain model and on a tagged one, and all workers want the same row. " +
		"SKIP LOCKED reads the first row that isn't locked, and updates it by its primary key.",
	Metrics: []report.Metric{
		{Name: "claims", Unit: "a second", About: "Of all workers; bold: relative to GORM's UPDATE.", Ratio: true},
		{Name: "p99", Unit: "us", About: "A claim, including retries."},
	},
	Base:   against(Claimers[0]),
	Charts: []report.Chart{{Name: "claims", Metric: "claims"}},
	Run:    runClaim,
}

// Claimers are those that claim rows.
var Claimers = []string{"GORM UPDATE LIMIT 1", "lockgorm UPDATE LIMIT 1", "GORM SKIP LOCKED", "lockgorm SKIP LOCKED"}

// kinds are how they do it.
var kinds = map[string]struct {
	locks bool
	claim func(db *gorm.DB) (int64, error)
}{
	Claimers[0]: {false, claimUpdate}, Claimers[1]: {true, claimUpdate},
	Claimers[2]: {false, claimSkipping}, Claimers[3]: {true, claimSkipping},
}

// row is a row of the stock that can be claimed, with a lock.
type row struct {
	ID int64 `lockstep:"bench-row"`
	N  int64
}

// TableName is the table of the stock.
func (row) TableName() string { return contender.Stock }

// claimer claims one row, and returns how many it has got.
type claimer struct {
	contender.Maker
	db    *gorm.DB
	claim func(db *gorm.DB) (int64, error)
}

func (c *claimer) Close() error {
	pool, err := c.db.DB()
	return errors.Join(err, pool.Close())
}

func runClaim(ctx context.Context, g *Ground) (err error) {
	const workers = 8
	all, err := openAll(claimers(g), func(m contender.Maker) (*claimer, error) {
		return openClaimer(ctx, m, g.Link.Place(g.Database, workers, 1))
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(all)) }()
	for round := range g.Effort.Rounds {
		for _, i := range stats.Turns(round, len(all)) {
			if _, err := g.Database.Pool.ExecContext(ctx, "UPDATE "+contender.Stock+" SET n = 0"); err != nil {
				return err
			}
			c := all[i].it
			took, whole, err := load(workers, g.Effort.Slice, func(int) error {
				for {
					switch n, err := c.claim(c.db.WithContext(ctx)); {
					case err == nil && n == 0:
						return errors.New("no row is left")
					case !txlock.Retryable(err):
						return err
					}
				}
			})
			if err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			g.add("", c.Name, "claims", float64(len(took))/whole.Seconds())
			g.add("", c.Name, "p99", stats.Percentile(took, 99))
		}
	}
	return nil
}

func claimers(g *Ground) (wanted []contender.Maker) {
	for _, name := range Claimers {
		if g.Wants(name) {
			wanted = append(wanted, contender.Maker{Name: name})
		}
	}
	return wanted
}

func openClaimer(ctx context.Context, m contender.Maker, at contender.Place) (*claimer, error) {
	kind := kinds[m.Name]
	open, plugins := contender.OpenPlain, []gorm.Plugin(nil)
	if kind.locks {
		open, plugins = contender.OpenGuarded, []gorm.Plugin{lockgorm.New()}
	}
	pool, err := open(ctx, at)
	if err != nil {
		return nil, err
	}
	db, err := contender.OnGORM(pool, plugins...)
	return &claimer{Maker: m, db: db, claim: kind.claim}, err
}

// claimUpdate claims a row in one statement.
func claimUpdate(db *gorm.DB) (int64, error) {
	got := db.Model(&row{}).Where("n = 0").Order("id").Limit(1).Update("n", 1)
	return got.RowsAffected, got.Error
}

// claimSkipping claims a row that nobody has locked.
func claimSkipping(db *gorm.DB) (claimed int64, err error) {
	err = db.Transaction(func(tx *gorm.DB) error {
		var r row
		if err := tx.Clauses(clause.Locking{Strength: "UPDATE", Options: "SKIP LOCKED"}).Where("n = 0").Order("id").Take(&r).Error; err != nil {
			return err
		}
		got := tx.Model(&r).Update("n", 1)
		claimed = got.RowsAffected
		return got.Error
	})
	return claimed, err
}
