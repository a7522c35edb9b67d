package guard

import "slices"

// savepoints tells which locks a ROLLBACK TO SAVEPOINT may have released. Both servers
// keep a lock that was taken before the savepoint; a lock that was taken after it may be
// gone.
type savepoints struct {
	last   int    // the last stamp that was given out
	marks  []mark // the savepoints that are set, oldest first
	undone []span
	hidden *int // the last stamp before the first statement that may have set savepoints unseen
}

// mark is a savepoint. It was set after the lock with the stamp at. If the server may take
// its name for another, the name is "", and it stands for all savepoints after it: only it
// is kept of them.
type mark struct {
	name string
	at   int
}

// span is a range of stamps: those above after, up to through.
type span struct{ after, through int }

// stamp returns the next number, for a lock that is about to be taken.
func (s *savepoints) stamp() int {
	s.last++
	return s.last
}

// stands reports whether the lock of that stamp is still held for certain.
func (s *savepoints) stands(stamp int) bool {
	return !slices.ContainsFunc(s.undone, func(u span) bool { return u.after < stamp && stamp <= u.through })
}

// set notes a SAVEPOINT. It replaces one of the same name. The name "" may be any.
func (s *savepoints) set(name string) {
	if s.doubtful() {
		return
	}
	if name != "" {
		s.marks = slices.DeleteFunc(s.marks, func(m mark) bool { return m.name == name })
	}
	s.marks = append(s.marks, mark{name, s.last})
}

// release notes a RELEASE SAVEPOINT. The servers release all later savepoints, too.
func (s *savepoints) release(name string) {
	if i := s.find(name); i >= 0 && name != "" && !s.doubtful() {
		s.marks = s.marks[:i]
	}
}

// rollBackTo notes a ROLLBACK TO SAVEPOINT. If no savepoint of that name is known, it
// undoes all that can't be older.
func (s *savepoints) rollBackTo(name string) {
	i := s.find(name)
	switch {
	case i < 0 && s.hidden == nil:
		s.undo(0)
		return
	case i < 0:
		s.undo(s.earliest())
		return
	case name != "" && !s.doubtful():
		s.marks = s.marks[:i+1]
	}
	s.undo(s.marks[i].at)
}

// doubtful reports whether a savepoint is set whose name may be any.
func (s *savepoints) doubtful() bool {
	return len(s.marks) > 0 && s.marks[len(s.marks)-1].name == ""
}

// unseen notes a statement that may have set savepoints, and may have rolled back to any
// that was set before.
func (s *savepoints) unseen() {
	s.undo(s.earliest())
	if s.hidden == nil {
		at := s.last
		s.hidden = &at
	}
}

// earliest returns the last stamp before the oldest savepoint.
func (s *savepoints) earliest() int {
	at := s.last
	if len(s.marks) > 0 {
		at = s.marks[0].at
	}
	if s.hidden != nil {
		at = min(at, *s.hidden)
	}
	return at
}

func (s *savepoints) undo(after int) {
	if after == s.last {
		return
	}
	s.undone = slices.DeleteFunc(s.undone, func(u span) bool { return u.after >= after })
	if n := len(s.undone); n > 0 && s.undone[n-1].through >= after {
		s.undone[n-1].through = s.last
		return
	}
	s.undone = append(s.undone, span{after, s.last})
}

// find returns the index of the oldest savepoint that may have that name, or -1.
func (s *savepoints) find(name string) int {
	return slices.IndexFunc(s.marks, func(m mark) bool { return m.name == name || m.name == "" || name == "" })
}
