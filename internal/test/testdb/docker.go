package testdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var defaultImage = map[Engine]string{MariaDB: "mariadb:10.11", MySQL: "mysql:9"}

// dockerWorks returns nil where there is a Docker engine to use.
func dockerWorks(ctx context.Context) error {
	if _, err := exec.LookPath("docker"); err != nil {
		return errors.New("docker is not installed")
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := run(ctx, nil, "docker", "info")
	if ctx.Err() != nil {
		return fmt.Errorf("docker info: %w", ctx.Err())
	}
	if err != nil {
		return errors.New("docker info fails")
	}
	return nil
}

// supervise is the container's first process. It runs the image's own entry
// point, and ends with it or with its standard input, which is us: so the
// server does not outlive a test process that is killed.
const supervise = `exec 3<&0
docker-entrypoint.sh "$@" </dev/null 3<&- &
pid=$!
{ cat <&3 >/dev/null; kill -KILL $pid; } &
exec 3<&-
wait $pid`

// ownerLabel is the label of a container that says who has made it, by default the
// process, and removes it unless it is killed: then the container stays, stopped.
const (
	ownerLabel    = "lockstep.owner"
	ownerVariable = "LOCKSTEP_TEST_OWNER"
)

// newDocker prepares a server in a container, which it makes at the first
// start, because the port belongs to the container.
func newDocker(ctx context.Context, engine Engine, image string, o options) (*instance, error) {
	if err := run(ctx, nil, "docker", "image", "inspect", image); err != nil {
		if err := run(ctx, nil, "docker", "pull", image); err != nil {
			return nil, err
		}
	}
	dir, err := privateDir()
	if err != nil {
		return nil, err
	}
	d := &dockerServer{
		engine: engine, image: image, opts: o, dir: dir,
		password: randomHex(8),
	}
	inst := &instance{
		origin: "Docker image " + image, dir: dir, user: "root", password: d.password,
		halt: d.halt, signal: d.signal, discard: d.discard,
	}
	inst.spawn = func(ctx context.Context, port int) (*Child, error) {
		if err := d.create(ctx, port); err != nil {
			return nil, err
		}
		cmd := exec.Command("docker", "start", "--attach", "--interactive", d.container)
		if _, err := cmd.StdinPipe(); err != nil { // stays open as long as we are
			return nil, err
		}
		return inst.startLogged(cmd)
	}
	return inst, nil
}

type dockerServer struct {
	engine    Engine
	image     string
	opts      options
	dir       string
	password  string
	container string // "" before the first start
	port      int    // that container publishes
}

// create makes the container, unless there is one for the port.
func (d *dockerServer) create(ctx context.Context, port int) error {
	if d.container != "" && d.port == port {
		return nil
	}
	if err := d.discard(); err != nil {
		return err
	}
	name := "lockstep-" + randomHex(6)
	server, env := "mysqld", "MYSQL"
	args := d.opts.serverArgs(d.engine)
	if d.engine == MariaDB {
		server, env = "mariadbd", "MARIADB"
		args = append(tlsArgs("/"), args...)
	}
	create := []string{
		"create", "--interactive", "--name", name,
		"--label", ownerLabel + "=" + cmp.Or(os.Getenv(ownerVariable), strconv.Itoa(os.Getpid())),
		"--publish", fmt.Sprintf("127.0.0.1:%d:3306", port),
		"--env", env + "_ROOT_PASSWORD=" + d.password,
		"--env", env + "_INITDB_SKIP_TZINFO=1",
		"--entrypoint", "sh", d.image, "-c", supervise, "lockstep", server,
	}
	if err := run(ctx, nil, "docker", append(create, args...)...); err != nil {
		return err
	}
	d.container, d.port = name, port
	if d.engine == MySQL {
		return nil // makes its certificates itself
	}
	if err := WriteCertificates(d.dir); err != nil {
		return err
	}
	for _, file := range []string{"ca.pem", "cert.pem", "key.pem"} {
		if err := run(ctx, nil, "docker", "cp", filepath.Join(d.dir, file), name+":/"+file); err != nil {
			return err
		}
	}
	return nil
}

func (d *dockerServer) halt() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := run(ctx, nil, "docker", "kill", "--signal", "KILL", d.container)
	if err != nil && strings.Contains(err.Error(), "is not running") {
		return nil
	}
	return err
}

// signal lets all processes of the container stand still, or go on.
func (d *dockerServer) signal(signal syscall.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch signal {
	case syscall.SIGSTOP:
		return run(ctx, nil, "docker", "pause", d.container)
	case syscall.SIGCONT:
		return run(ctx, nil, "docker", "unpause", d.container)
	}
	return fmt.Errorf("testdb: a container can't be sent %s", signal)
}

// discard removes the container with its data.
func (d *dockerServer) discard() error {
	if d.container == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name := d.container
	d.container = ""
	return run(ctx, nil, "docker", "rm", "--force", "--volumes", name)
}
