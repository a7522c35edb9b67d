package contender

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redisLock waits as the example of redislock's documentation does.
func redisLock() Maker {
	return redisLockEvery("redislock 100 ms", 100*time.Millisecond)
}

// redisLockQuick waits for a shorter time between its tries, at the server's expense.
func redisLockQuick() Maker {
	m := redisLockEvery("redislock 5 ms", 5*time.Millisecond)
	m.OnlyHot = true
	return m
}

func redisLockEvery(name string, every time.Duration) Maker {
	return Maker{
		Name: name, About: "github.com/bsm/redislock: Obtain with LinearBackoff of that time, Release",
		Redis: true, Renews: true,
		Leaser: func(ctx context.Context, at Place) (Leaser, error) {
			client, err := openRedis(ctx, at)
			if err != nil {
				return nil, err
			}
			return &redisLocks{Client: client, locker: redislock.New(client), options: &redislock.Options{RetryStrategy: redislock.LinearBackoff(every)}}, nil
		},
	}
}

// openRedis opens the connections of a client.
func openRedis(ctx context.Context, at Place) (*redis.Client, error) {
	client := redis.NewClient(&redis.Options{Addr: at.Redis, PoolSize: at.Conns + 1, MinIdleConns: at.Conns})
	if err := client.Ping(ctx).Err(); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return client, nil
}

type redisLocks struct {
	*redis.Client
	locker  *redislock.Client
	options *redislock.Options
}

func (r *redisLocks) Acquire(ctx context.Context, key int64) (Lease, error) {
	// Without a deadline it would wait for one TTL.
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	l, err := r.locker.Obtain(ctx, KeyName(key), TTL, r.options)
	if err != nil {
		return nil, err
	}
	return redisLease{l}, nil
}

type redisLease struct{ *redislock.Lock }

func (l redisLease) Renew(ctx context.Context) error { return l.Refresh(ctx, TTL, nil) }

// redSync waits as it does by default, 50 to 250 ms between its tries, but not for 32
// tries only.
func redSync() Maker {
	return Maker{
		Name: "redsync", About: "github.com/go-redsync/redsync/v4 on one Redis: LockContext, UnlockContext; waiters try every 50 to 250 ms",
		Redis: true, Renews: true,
		Leaser: func(ctx context.Context, at Place) (Leaser, error) {
			client, err := openRedis(ctx, at)
			if err != nil {
				return nil, err
			}
			return &redSyncs{Client: client, sync: redsync.New(goredis.NewPool(client))}, nil
		},
	}
}

type redSyncs struct {
	*redis.Client
	sync *redsync.Redsync
}

func (r *redSyncs) Acquire(ctx context.Context, key int64) (Lease, error) {
	const forEver = 1 << 30
	m := r.sync.NewMutex("redsync:"+KeyName(key), redsync.WithExpiry(TTL), redsync.WithTries(forEver))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return redMutex{m}, nil
}

type redMutex struct{ *redsync.Mutex }

func (m redMutex) Renew(ctx context.Context) error {
	_, err := m.ExtendContext(ctx)
	return err
}

func (m redMutex) Release(ctx context.Context) error {
	_, err := m.UnlockContext(ctx)
	return err
}
