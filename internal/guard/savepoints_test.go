package guard

import "testing"

// TestSavepoints tells which locks stand after savepoints were rolled back.
func TestSavepoints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(s *savepoints) (stands, gone []int)
	}{
		{"after the savepoint", func(s *savepoints) (stands, gone []int) {
			a := s.stamp()
			s.set("x")
			b := s.stamp()
			s.rollBackTo("x")
			return []int{a, s.stamp()}, []int{b}
		}},
		{"twice", func(s *savepoints) (stands, gone []int) {
			s.set("x")
			a := s.stamp()
			s.rollBackTo("x")
			b := s.stamp()
			s.rollBackTo("x")
			return []int{s.stamp()}, []int{a, b}
		}},
		{"an inner one", func(s *savepoints) (stands, gone []int) {
			s.set("x")
			a := s.stamp()
			s.set("y")
			b := s.stamp()
			s.rollBackTo("y")
			return []int{a}, []int{b}
		}},
		{"an outer one, after an inner one", func(s *savepoints) (stands, gone []int) {
			a := s.stamp()
			s.set("x")
			b := s.stamp()
			s.set("y")
			c := s.stamp()
			s.rollBackTo("y")
			d := s.stamp()
			s.rollBackTo("x")
			return []int{a}, []int{b, c, d}
		}},
		{"set again under the same name", func(s *savepoints) (stands, gone []int) {
			s.set("x")
			a := s.stamp()
			s.set("x")
			b := s.stamp()
			s.rollBackTo("x")
			return []int{a}, []int{b}
		}},
		{"released with those after it", func(s *savepoints) (stands, gone []int) {
			s.set("x")
			a := s.stamp()
			s.set("y")
			s.set("z")
			s.release("y")
			b := s.stamp()
			s.rollBackTo("x")
			return nil, []int{a, b}
		}},
		{"one that was set unseen", func(s *savepoints) (stands, gone []int) {
			a := s.stamp()
			s.unseen()
			b := s.stamp()
			s.rollBackTo("of a procedure")
			return []int{a}, []int{b}
		}},
		{"unseen, to one of the program", func(s *savepoints) (stands, gone []int) {
			a := s.stamp()
			s.set("x")
			b := s.stamp()
			s.unseen()
			return []int{a, s.stamp()}, []int{b}
		}},
		{"unseen, to one that was set unseen", func(s *savepoints) (stands, gone []int) {
			s.unseen()
			a := s.stamp()
			s.unseen()
			return nil, []int{a}
		}},
		{"unseen, where all were released", func(s *savepoints) (stands, gone []int) {
			s.set("x")
			s.set("y")
			s.release("x")
			a := s.stamp()
			s.unseen()
			return []int{a}, nil
		}},
		{"one that nobody has seen set", func(s *savepoints) (stands, gone []int) {
			a := s.stamp()
			s.set("x")
			b := s.stamp()
			s.rollBackTo("y")
			return []int{s.stamp()}, []int{a, b}
		}},
		{"one whose name may be any", func(s *savepoints) (stands, gone []int) {
			a := s.stamp()
			s.set("x")
			b := s.stamp()
			s.rollBackTo("")
			return []int{a, s.stamp()}, []int{b}
		}},
		{"one after one whose name may be any", func(s *savepoints) (stands, gone []int) {
			a := s.stamp()
			s.set("")
			b := s.stamp()
			s.set("x")
			c := s.stamp()
			s.rollBackTo("x")
			return []int{a}, []int{b, c}
		}},
		{"one before one whose name may be its own, which is released", func(s *savepoints) (stands, gone []int) {
			s.set("x")
			s.set("y")
			a := s.stamp()
			s.set("") // x, and replaces it
			s.release("x")
			b := s.stamp()
			s.rollBackTo("y")
			return nil, []int{a, b}
		}},
		{"one before a release whose name may be any", func(s *savepoints) (stands, gone []int) {
			a := s.stamp()
			s.set("x")
			s.set("y")
			b := s.stamp()
			s.release("") // y
			c := s.stamp()
			s.rollBackTo("x")
			return []int{a}, []int{b, c}
		}},
		{"one before a rollback whose name may be any", func(s *savepoints) (stands, gone []int) {
			a := s.stamp()
			s.set("x")
			s.set("y")
			b := s.stamp()
			s.rollBackTo("") // y
			c := s.stamp()
			s.rollBackTo("y")
			return []int{a}, []int{b, c}
		}},
		{"unseen, where none was set", func(s *savepoints) (stands, gone []int) {
			a := s.stamp()
			s.unseen()
			return []int{a}, nil
		}},
	} {
		var s savepoints
		stands, gone := c.do(&s)
		for _, stamp := range stands {
			if !s.stands(stamp) {
				t.Errorf("%s: lock %d is gone: %+v", c.name, stamp, s)
			}
		}
		for _, stamp := range gone {
			if s.stands(stamp) {
				t.Errorf("%s: lock %d stands: %+v", c.name, stamp, s)
			}
		}
	}
}

// TestSavepointsStaySmall proves that many failed nested transactions don't fill the
// memory.
func TestSavepointsStaySmall(t *testing.T) {
	t.Parallel()
	var s savepoints
	s.stamp()
	s.set("outer")
	for range 10_000 {
		s.set("inner")
		s.stamp()
		s.rollBackTo("inner")
		s.release("inner")
	}
	for range 10_000 {
		s.set("empty")
		s.rollBackTo("empty")
	}
	for range 10_000 {
		s.set("")
		s.set("behind it")
	}
	if len(s.marks) > 3 || len(s.undone) > 1 {
		t.Errorf("%d savepoints and %d spans are kept", len(s.marks), len(s.undone))
	}
	s.rollBackTo("outer")
	if len(s.undone) != 1 || !s.stands(1) {
		t.Errorf("after the outer one: %d spans, the first lock stands: %t", len(s.undone), s.stands(1))
	}
}
