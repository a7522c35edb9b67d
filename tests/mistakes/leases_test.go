package mistakes

import (
	"context"
	"strings"
	"time"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

var ofLeases = []mistake{
	{"the pool of a manager is nil", func(*shop) error { return second(lease.NewManager(nil)) }, nil, []string{"NewManager needs a *sql.DB, got nil"}, none},
	{"a TTL is too short", func(s *shop) error { return second(lease.NewManager(s.pool, lease.TTL(time.Millisecond))) }, txlock.ErrInvalidOption, []string{"it must be from 10ms to 720h0m0s"}, none},
	{"a lease is renewed more seldom than twice in its TTL", func(s *shop) error {
		return second(lease.NewManager(s.pool, lease.TTL(10*time.Second), lease.RenewEvery(6*time.Second)))
	}, txlock.ErrInvalidOption, []string{"is more than half of the TTL of 10s"}, none},
	{"the limit of a wait for a lease is 0", func(s *shop) error {
		return second(s.manager().Acquire(s.ctx, s.order, lease.WaitAtMost(0)))
	}, txlock.ErrInvalidOption, []string{"the limit must be positive, use TryAcquire to not wait at all"}, none},
	{"a label is longer than 255 bytes", func(s *shop) error {
		return second(s.manager().Acquire(s.ctx, s.order, lease.WithLabel(strings.Repeat("x", 256))))
	}, txlock.ErrInvalidOption, []string{"a label has at most 255 bytes, this one has 256"}, none},
	{"the key of a lease is empty", func(s *shop) error { return second(s.manager().Acquire(s.ctx, txlock.Named(""))) }, txlock.ErrInvalidKey, []string{"the name is empty"}, none},
	{"another process has the lease, and TryAcquire doesn't wait", func(s *shop) error {
		s.must(second(s.manager().Acquire(s.ctx, s.order)))
		return second(s.manager().TryAcquire(s.ctx, s.order))
	}, txlock.ErrBusy, []string{"lock not available"}, none},
	{"another process has the lease for longer than the limit", func(s *shop) error {
		s.must(second(s.manager(lease.WithLabel("the nightly report")).Acquire(s.ctx, s.order)))
		return second(s.manager().Acquire(s.ctx, s.order, lease.WaitAtMost(2*time.Second)))
	}, txlock.ErrWaitTimeout, []string{"timed out waiting for the lock; retry later", "(the nightly report) had it since"}, none},
	{"a lease that was lost is released", func(s *shop) error {
		l, err := s.manager().Acquire(s.ctx, s.order)
		s.must(err)
		s.must(s.manager().ForceRelease(s.ctx, s.order))
		return l.Release(s.ctx)
	}, txlock.ErrNotHeld, []string{"the lock is not held"}, none},
	{"a transaction is guarded by a lease that is over", func(s *shop) error {
		l, err := s.manager().Acquire(s.ctx, s.order)
		s.must(err)
		s.must(l.Release(s.ctx))
		s.begin()
		return l.Guard(s.ctx, s.tx)
	}, txlock.ErrNotHeld, []string{"the lock is not held: it was released"}, goesOn},
	{"a transaction of another database is guarded", func(s *shop) error {
		l, err := s.manager().Acquire(s.ctx, s.order)
		s.must(err)
		s.tx, s.reads = s.beginOn(s.open(s.elsewhere().AdminDSN())), true
		return l.Guard(s.ctx, s.tx)
	}, lease.ErrOtherDatabase, []string{"guard a transaction in the manager's own database"}, goesOn},
	{"a transaction is guarded after its Commit", func(s *shop) error {
		l, err := s.manager().Acquire(s.ctx, s.order)
		s.must(err)
		tx := s.beginOn(s.pool)
		s.must(tx.Commit())
		return l.Guard(s.ctx, tx)
	}, txlock.ErrNoTransaction, []string{"no open transaction"}, none},
	{"a lease is asked of a manager that is closed", func(s *shop) error {
		m := s.manager()
		s.must(m.Close(s.ctx))
		return second(m.Acquire(s.ctx, s.order))
	}, lease.ErrClosed, []string{"the manager is closed"}, none},
	{"a reader asks for the lease exclusively", func(s *shop) error {
		m, ctx := s.manager(), lease.WithOwner(s.ctx, s.Name())
		s.must(second(m.AcquireShared(ctx, s.order)))
		return second(m.Acquire(ctx, s.order))
	}, txlock.ErrUpgrade, []string{"release that first, or acquire it exclusively from the start"}, none},
	{"a semaphore has no permits", func(s *shop) error { return second(s.manager().Semaphore(s.order, 0)) }, txlock.ErrInvalidOption, []string{"it has 1 to 1000 permits"}, none},
	{"a semaphore has another number than it was made with", func(s *shop) error {
		s.must(second(s.permit(3).TryAcquire(s.ctx)))
		return second(s.permit(4).TryAcquire(s.ctx))
	}, txlock.ErrInvalidOption, []string{"use Resize to change that"}, none},
	{"the key of a semaphore is that of a shared lease", func(s *shop) error {
		s.must(second(s.manager().AcquireShared(s.ctx, s.order)))
		return second(s.permit(3).TryAcquire(s.ctx))
	}, txlock.ErrInvalidKey, []string{"is used for a shared lease: use another key"}, none},
	{"a holder is asked where there is none", func(s *shop) error { return s.manager().RequestRelease(s.ctx, s.order, "deployment") }, txlock.ErrNotHeld, []string{"the lock is not held"}, none},
	{"a lease is taken away that nobody holds", func(s *shop) error { return s.manager().ForceRelease(s.ctx, s.order) }, txlock.ErrNotHeld, []string{"the lock is not held"}, none},
	{"a majority is made of two databases", func(s *shop) error {
		return second(quorum.New([]*lease.Manager{s.manager(), s.manager()}))
	}, txlock.ErrInvalidOption, []string{"New needs 3, 5, 7 or 9 managers, got 2"}, none},
}

func (s *shop) permit(n int) *lease.Semaphore {
	s.Helper()
	semaphore, err := s.manager().Semaphore(s.order, n)
	s.must(err)
	return semaphore
}

// jobs makes Jobs.
func (s *shop) jobs() *job.Jobs {
	s.Helper()
	j, err := job.New(s.pool, s.manager())
	s.must(err)
	s.Cleanup(func() { _ = j.Close(context.WithoutCancel(s.ctx)) })
	return j
}

func nothing(context.Context, time.Time) error { return nil }

var ofJobs = []mistake{
	{"a line of cron has four fields", func(s *shop) error { return s.jobs().Run(s.ctx, s.order, job.Cron("0 2 * *"), nothing) }, txlock.ErrInvalidOption, []string{"expected 5 to 6 fields, found 4"}, none},
	{"a line of cron says @every", func(s *shop) error { return s.jobs().Run(s.ctx, s.order, job.Cron("@every 1m"), nothing) }, txlock.ErrInvalidOption, []string{"intervals depend on when they begin: use Every"}, none},
	{"the time between two ticks is 0", func(s *shop) error { return s.jobs().Run(s.ctx, s.order, job.Every(0), nothing) }, txlock.ErrInvalidOption, []string{"it must be at least 1ms, and whole microseconds"}, none},
	{"a tick of tomorrow is begun today", func(s *shop) error {
		return second(s.jobs().Tick(s.ctx, s.order, time.Now().Add(24*time.Hour), nothing))
	}, job.ErrEarly, []string{"scheduled time is ahead of the server's clock"}, none},
	{"a tick of yesterday is begun after that of today", func(s *shop) error {
		j := s.jobs()
		s.must(second(j.Tick(s.ctx, s.order, time.Now().Add(-time.Minute), nothing)))
		return second(j.Tick(s.ctx, s.order, time.Now().Add(-24*time.Hour), nothing))
	}, job.ErrPast, []string{"a later tick was started", "is older"}, none},
	{"a tick is claimed that was done", func(s *shop) error {
		j, at := s.jobs(), time.Now().Add(-time.Minute)
		s.must(second(j.Tick(s.ctx, s.order, at, nothing)))
		return second(j.Claim(s.ctx, s.order, at))
	}, job.ErrDone, []string{"tick already done"}, none},
	{"Jobs are used after Close", func(s *shop) error {
		j := s.jobs()
		s.must(j.Close(s.ctx))
		return second(j.Tick(s.ctx, s.order, time.Now(), nothing))
	}, job.ErrClosed, []string{"job: closed"}, none},
	{"the grace of an election is longer than half of its TTL", func(s *shop) error {
		return second(elect.New(s.manager(), s.order, elect.TTL(10*time.Second), elect.Grace(9*time.Second)))
	}, txlock.ErrInvalidOption, []string{"is more than half of the TTL of 10s"}, none},
	{"the leader is asked for while nobody leads", func(s *shop) error {
		e, err := elect.New(s.manager(), s.order)
		s.must(err)
		return second(e.Leader(s.ctx))
	}, elect.ErrNoLeader, []string{"no leader"}, none},
}

// Models of a program that uses the plugin.
type (
	Parcel struct {
		ID int64 `lockstep:"parcel"`
		N  int64
	}
	Article struct {
		ID      int64
		Text    string
		Version lockgorm.Version
	}
	User struct {
		Name string `gorm:"primaryKey;type:varchar(50)" lockstep:"user"`
		N    int64
	}
)

var ofGORM = []mistake{
	{"lockgorm.Lock is called with the pool", func(s *shop) error { return second(lockgorm.Lock(s.gorm(), s.order)) }, txlock.ErrNoTransaction, []string{"this *gorm.DB is a pool: use the handle that Transaction or Begin gave"}, none},
	{"an update of a locked model is by a random number", func(s *shop) error {
		return s.gorm().Model(&Parcel{}).Where("n > RAND()").Update("n", 0).Error
	}, txlock.ErrInvalidKey, []string{"its conditions call RAND", "name the keys by Clauses(lockgorm.On(...))"}, none},
	{"a tag is over a column that takes several spellings for one", func(s *shop) error {
		return s.gorm().Create(&User{Name: "Bob"}).Error
	}, txlock.ErrInvalidKey, []string{"such as Bob and bob", "or give it a binary collation"}, none},
	{"a model with a version was not loaded", func(s *shop) error {
		return s.gorm().Model(&Article{}).Where("id = ?", s.id).Update("text", "new").Error
	}, lockgorm.ErrVersion, []string{"change loaded models one by one or as a slice, or add Clauses(lockgorm.AnyVersion)"}, none},
	{"a model with a version is saved that another transaction has changed", func(s *shop) error {
		db := s.gorm()
		s.must(db.Create(&Article{ID: s.id, Text: "first"}).Error)
		var mine, theirs Article
		s.must(db.Take(&mine, s.id).Error)
		s.must(db.Take(&theirs, s.id).Error)
		s.must(db.Model(&theirs).Update("text", "theirs").Error)
		return db.Model(&mine).Update("text", "mine").Error
	}, txlock.ErrConflict, []string{"roll back, then read and show the record again", "another transaction changed it"}, none},
}
