// Package lockhttp serves pages that show who holds which lock or lease, who waits, and
// what has happened, live:
//
//	pages, err := lockhttp.New(db)
//	http.Handle("/locks/", pages)
//
// [New] makes the [Handler] for the database of a pool. Everybody who reaches it can read
// it, so put it behind the login of the program. [Handler.Close] ends it.
//
// # Pages
//
// The overview has who is waited for, the last hour as charts, and the last events. The
// others are locks, leases, waits (who waits for whom), queues, jobs, leaders, events,
// search, and one for each key. They are made by the server, update themselves by
// server-sent events or, where those don't come through, by polling, and work without
// JavaScript, too. All they need is embedded, and their Content-Security-Policy allows
// nothing else. Tables have pages of 100 rows.
//
// Beside each page is its JSON: locks.json, or the parameter format=json; that of the
// overview is overview.json. It has all rows that match the parameter q. The forms are those
// of cmd/lockstep/json.md, with what the page has beyond them. Fields may be added.
//
// # What it costs
//
// One look at the server is for all viewers together, at most once a second, and only
// while somebody has a page open. Pages of jobs and of keys and the overview add a few statements to a
// look. With 1,000 locks and 100 waiters that is less than 1 % of a core of the server, and
// less where the pool has interpolateParams=true. The account of the pool sees what the command lockstep would see with it: what is
// not seen is listed at the end of each page, with the GRANT that would tell more.
//
// # What is shown
//
// Keys, owners, notes and errors of jobs are shown as programs have written them, unless
// [MaskKeys] and [MaskNotes] change that. Of statements, which hold business data, only the
// first word is shown, or the name if it is one of lockstep's or was made by sqlc.
//
// # Changes
//
// The pages are read-only. With [Authorize], those whom the program allows it may release
// locks, ask holders, and pause, resume and run jobs. What was done or refused is written to the log of [Log], with the
// key itself, also where pages mask it.
//
// # Events
//
// A [Recorder] is an observer that adds the rates, waits and events of this process. Without
// one, the timeline has what looks have seen: grants that are new, and that are gone.
package lockhttp
