package testdb

// Option is a setting of Start and Dedicated.
type Option func(*options)

type options struct {
	durable bool
	args    []string
	env     []string
	parted  bool
	parent  string // of the server's directory, "" for that of temporary files
}

// Durable flushes every commit to the disk, as production does: for
// benchmarks. The default is to leave that to the operating system, so that a
// killed server loses nothing, but a machine that loses power may.
func Durable() Option {
	return func(o *options) { o.durable = true }
}

// Args adds arguments to the server's command line, such as
// "--innodb-rollback-on-timeout=ON". They come last, so they win. The default
// is none.
func Args(args ...string) Option {
	return func(o *options) { o.args = append(o.args, args...) }
}

// Env adds variables to the environment of the server, such as "TZ=UTC". It is for a server
// of this machine: one in Docker has that of its image. The default is none.
func Env(variables ...string) Option {
	return func(o *options) { o.env = append(o.env, variables...) }
}

// In makes the directory of the server, with its data, in that one, for example on a disk
// of its own. It is for a server of this machine: one in Docker has its data there. The
// default is the directory for temporary files.
func In(parent string) Option {
	return func(o *options) { o.parent = parent }
}

// serverArgs is the part of the command line that is the same wherever the
// server runs.
func (o options) serverArgs(engine Engine) []string {
	args := []string{
		"--skip-log-bin",
		"--innodb-buffer-pool-size=128M",
		"--max-connections=1000",
		"--local-infile=1",
	}
	if engine == MySQL {
		// Tables in one file: MySQL makes and drops them in a quarter of the time.
		// One thread counts rows: MySQL starts four for each COUNT(*).
		args = append(args, "--mysqlx=0", "--secure-file-priv=NULL", "--innodb-file-per-table=OFF", "--loose-innodb-parallel-read-threads=1")
	}
	if o.durable {
		args = append(args, "--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1")
	} else {
		// 2 and not 0: written at every commit, so that Kill loses nothing.
		args = append(args, "--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0")
	}
	return append(args, o.args...)
}
