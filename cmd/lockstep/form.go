package main

import (
	"time"

	"github.com/dca00107/lockstep/internal/ops"
)

// What --json prints: json.md has the forms, which stay. Fields may be added.

type locksForm struct {
	Locks    []ops.Lock             `json:"locks"`
	Sessions map[uint64]ops.Session `json:"sessions"`
	Gaps     []ops.Gap              `json:"gaps"`
}

type leasesForm struct {
	Leases []ops.Lease `json:"leases"`
	Gaps   []ops.Gap   `json:"gaps"`
}

type waitsForm struct {
	Waits    []*ops.Node            `json:"waits"`
	Sessions map[uint64]ops.Session `json:"sessions"`
	Gaps     []ops.Gap              `json:"gaps"`
}

type jobForm struct {
	Now  time.Time     `json:"now"`
	Job  ops.JobStatus `json:"job"`
	Runs []ops.JobRun  `json:"runs"`
}

type changedForm struct {
	Key string `json:"key"`
	Did string `json:"did"` // pause, resume, run
}

type onceForm struct {
	Once []ops.OnceRecord `json:"once"`
	More bool             `json:"more"` // there are more than --most
}

type leadersForm struct {
	Leaders []ops.Leader `json:"leaders"`
}

type findingsForm struct {
	Findings []ops.Finding `json:"findings"`
}

type askedForm struct {
	Key    string      `json:"key"`
	Reason string      `json:"reason"`
	Leases []ops.Lease `json:"leases"` // whose holders were asked
}

type releasedForm struct {
	Key    string      `json:"key"`
	Leases []ops.Lease `json:"leases"` // that were taken away
	Locks  []ops.Lock  `json:"locks"`  // whose sessions were ended
}

type installedForm struct {
	Tables     []string `json:"tables"`
	Views      []string `json:"views"`
	Procedures []string `json:"procedures"` // that this user may see
}

type removedForm struct {
	Removed map[string]int `json:"removed"`
}

type measuredForm struct {
	Measured []measured `json:"measured"`
}

type versionForm struct {
	Version string `json:"version"`
}
