package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// diskSize is that of the disk of a server. It is in memory.
const diskSize = "640m"

// disk is a small disk for a server.
type disk struct{ dir string }

// newDisk mounts one, which needs to be allowed.
func newDisk(dir, name string) (*disk, error) {
	d := &disk{filepath.Join(dir, name+".disk")}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		return nil, err
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+diskSize+",mode=0700", "lockstep-chaos", d.dir).CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("mount: %w: %s", err, out), os.Remove(d.dir))
	}
	return d, nil
}

// close unmounts it. The server must have ended.
func (d *disk) close() error {
	if out, err := exec.Command("umount", d.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("umount %s: %w: %s", d.dir, err, out)
	}
	return os.Remove(d.dir)
}

func (d *disk) filler() string { return filepath.Join(d.dir, "filler") }

// fill writes until there is no room.
func (d *disk) fill() error {
	f, err := os.OpenFile(d.filler(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for _, block := range [][]byte{make([]byte, 1<<20), make([]byte, 1<<12)} {
		for err == nil {
			_, err = f.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			break
		}
		err = nil
	}
	return errors.Join(err, f.Close())
}

// empty makes room again.
func (d *disk) empty() error { return os.Remove(d.filler()) }

// ballastSize is that of a row, of which four are on a page.
const ballastSize = 4000

// fillDisk fills the server's disk, and its tables with what they have room for.
func (s *site) fillDisk(ctx context.Context, admin *sql.Conn, f fault) error {
	limited, cancel := context.WithTimeout(context.Background(), 5*opLimit)
	defer cancel()
	if err := s.disk.fill(); err != nil {
		return errors.Join(err, s.disk.empty())
	}
	row, refused := make([]byte, ballastSize), error(nil)
	for _, rows := range []int{16, 1} { // of what is refused nothing stays
		for refused = nil; refused == nil; {
			_, refused = admin.ExecContext(limited, "INSERT INTO ballast (text) VALUES (?)"+strings.Repeat(", (?)", rows-1), slices.Repeat([]any{row}, rows)...)
		}
	}
	if number(refused) == errTableFull || !s.server.Running() {
		s.feel(f.kind)
	}
	f.lasting(ctx)
	if err := s.disk.empty(); err != nil {
		return err
	}
	if !s.server.Running() {
		return nil // it is started again, now that it has room
	}
	fresh, err := s.admin.Conn(context.Background()) // a context that has ended has closed the other
	if err != nil {
		return s.unlessEnded(err)
	}
	defer func() { _ = fresh.Close() }()
	return s.unlessEnded(insist(fresh, "TRUNCATE TABLE ballast"))
}

// unlessEnded is nil where the server has not survived.
func (s *site) unlessEnded(err error) error {
	if !s.server.Running() {
		return nil
	}
	return err
}
