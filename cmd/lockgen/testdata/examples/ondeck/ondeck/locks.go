package ondeck

import "github.com/dca00107/lockstep/txlock"

var (
	//lockstep:table city(slug)
	Cities = txlock.NewFamily[string]("city", txlock.Fold("utf8mb4_0900_ai_ci"))
	//lockstep:table venue(slug)
	Venues = txlock.NewFamily[string]("venue", txlock.Fold("utf8mb4_0900_ai_ci"))
)
