package site

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is a Redis server: somebody else's, or one that was started here.
type Redis struct {
	Addr     string
	Version  string
	Settings []Setting

	process   *exec.Cmd
	directory string
}

// StartRedis connects to the Redis at an address, or starts one that flushes every
// command to the disk where the address is empty.
func StartRedis(ctx context.Context, addr string) (*Redis, error) {
	r := &Redis{Addr: addr}
	if addr == "" {
		if err := r.start(ctx); err != nil {
			return nil, errors.Join(err, r.Stop())
		}
	}
	if err := r.look(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("redis at %s: %w", r.Addr, err), r.Stop())
	}
	return r, nil
}

// binary finds redis-server, and installs it as root on Debian.
func binary(ctx context.Context) (string, error) {
	if path, err := exec.LookPath("redis-server"); err == nil {
		return path, nil
	}
	const cure = "install redis-server (Debian: apt-get install redis-server), set LOCKSTEP_REDIS_ADDR, or name contenders without Redis in CONTENDERS"
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return "", errors.New("there is no redis-server in PATH: " + cure)
	}
	fmt.Fprintln(os.Stderr, "bench: installing redis-server")
	install := func() ([]byte, error) {
		cmd := exec.CommandContext(ctx, "apt-get", "install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "redis-server")
		// At run level 1 Debian starts no service.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		return cmd.CombinedOutput()
	}
	said, err := install()
	if err != nil { // the lists may be missing or old
		if said, err = exec.CommandContext(ctx, "apt-get", "update").CombinedOutput(); err == nil {
			said, err = install()
		}
	}
	if err != nil {
		return "", fmt.Errorf("apt-get can't install redis-server: %w: %s\n%s", err, said, cure)
	}
	return exec.LookPath("redis-server")
}

func (r *Redis) start(ctx context.Context) error {
	path, err := binary(ctx)
	if err != nil {
		return err
	}
	if r.directory, err = os.MkdirTemp("", "lockstep-bench-redis-"); err != nil {
		return err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.Addr = free.Addr().String()
	port := free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		return err
	}
	r.process = exec.Command(path, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", r.directory,
		"--save", "", "--appendonly", "yes", "--appendfsync", "always", "--loglevel", "warning")
	r.process.Stderr = os.Stderr
	if err := r.process.Start(); err != nil {
		r.process = nil
		return err
	}
	return nil
}

// look waits until the server answers, and asks for its settings.
func (r *Redis) look(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: r.Addr})
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err := client.Ping(ctx).Err()
	for err != nil && r.process != nil && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
		err = client.Ping(ctx).Err()
	}
	if err != nil {
		return err
	}
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	for line := range strings.Lines(info) {
		if version, found := strings.CutPrefix(line, "redis_version:"); found {
			r.Version = strings.TrimSpace(version)
		}
	}
	for _, name := range []string{"appendonly", "appendfsync", "save"} {
		values, err := client.ConfigGet(ctx, name).Result()
		if err != nil {
			return err
		}
		r.Settings = append(r.Settings, Setting{name, values[name]})
	}
	return nil
}

// Durable tells whether each command is flushed to the disk.
func (r *Redis) Durable() bool {
	wanted := map[string]string{"appendonly": "yes", "appendfsync": "always"}
	for _, setting := range r.Settings {
		if value, asked := wanted[setting.Name]; asked && value != setting.Value {
			return false
		}
	}
	return true
}

// Stop ends a server that was started here.
func (r *Redis) Stop() error {
	var err error
	if r.process != nil {
		_ = r.process.Process.Signal(os.Interrupt)
		ended := time.AfterFunc(10*time.Second, func() { _ = r.process.Process.Kill() })
		err = r.process.Wait()
		ended.Stop()
		r.process = nil
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = nil
		}
	}
	if r.directory != "" {
		err = errors.Join(err, os.RemoveAll(r.directory))
	}
	return err
}
