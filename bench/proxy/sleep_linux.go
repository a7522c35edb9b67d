package proxy

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper waits for fractions of a millisecond. Timers of Go are late by up to a
// millisecond where the program is idle, since epoll counts in those; a timerfd is a
// file that becomes readable in time.
type sleeper struct{ file *os.File }

func newSleeper() (*sleeper, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &sleeper{file: os.NewFile(uintptr(fd), "timerfd")}, nil
}

// until returns when the time has come.
func (s *sleeper) until(due time.Time) error {
	left := time.Until(due)
	if left <= 0 {
		return nil
	}
	conn, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = conn.Control(func(fd uintptr) {
		set = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(left))}, nil)
	})
	if err != nil {
		return err
	}
	if set != nil {
		return os.NewSyscallError("timerfd_settime", set)
	}
	var expirations [8]byte
	_, err = s.file.Read(expirations[:])
	return err
}

func (s *sleeper) close() error { return s.file.Close() }
