package testdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// newLocal prepares a server of this machine: a private directory with a data
// directory that has nothing but an administrator.
func newLocal(ctx context.Context, engine Engine, b binary, o options) (*instance, error) {
	dir, err := privateDirIn(cmp.Or(o.parent, os.TempDir()))
	if err != nil {
		return nil, err
	}
	inst := &instance{
		origin:   b.origin,
		dir:      dir,
		user:     "lockstep_admin",
		password: randomHex(8),
		socket:   filepath.Join(dir, "s.sock"),
	}
	if err := inst.prepareLocal(ctx, engine, b, o); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return inst, nil
}

func (i *instance) prepareLocal(ctx context.Context, engine Engine, b binary, o options) error {
	data := filepath.Join(i.dir, "data")
	if err := fillData(ctx, engine, b, data); err != nil {
		return err
	}
	setup := filepath.Join(i.dir, "init.sql")
	if err := os.WriteFile(setup, []byte(i.adminSQL(engine)), 0o600); err != nil {
		return err
	}
	line := b.line(asRoot()...)
	line = append(line,
		"--datadir="+data,
		"--tmpdir="+i.dir,
		"--socket="+i.socket,
		"--pid-file="+filepath.Join(i.dir, "pid"),
		"--init-file="+setup,
		"--bind-address=127.0.0.1",
	)
	if engine == MariaDB { // MySQL makes its certificates itself
		if err := WriteCertificates(i.dir); err != nil {
			return err
		}
		line = append(line, tlsArgs(i.dir)...)
	}
	line = append(line, o.serverArgs(engine)...)
	i.spawn = func(_ context.Context, port int) (*Child, error) {
		args := slices.Concat(line[1:], []string{fmt.Sprintf("--port=%d", port)})
		cmd := exec.Command(line[0], args...)
		cmd.Env = append(os.Environ(), o.env...)
		return i.startLogged(cmd)
	}
	return nil
}

// startLogged starts the command with its output in the log.
func (i *instance) startLogged(cmd *exec.Cmd) (*Child, error) {
	log, err := os.Create(i.logPath())
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own
	cmd.Stdout, cmd.Stderr = log, log
	var in *namespace
	if i.net != nil {
		in = i.net.namespace
	}
	return startChildIn(in, cmd)
}

// initialise fills a data directory. Temporary files stay beside it: a MariaDB
// server that starts removes the temporary tables of all that share its
// directory for them.
func initialise(ctx context.Context, engine Engine, b binary, data string) error {
	env := []string{"TMPDIR=" + filepath.Dir(data), adminPath()}
	if engine == MySQL {
		line := b.line(append(asRoot(), "--initialize-insecure", "--loose-innodb-redo-log-capacity=8M", "--datadir="+data)...)
		return run(ctx, env, line[0], line[1:]...)
	}
	script, err := b.installScript()
	if err != nil {
		return err
	}
	args := slices.Concat([]string{"--no-defaults"}, b.args, asRoot())
	if len(b.command) > 1 { // the script calls a server by one name
		server := filepath.Join(filepath.Dir(data), "server")
		text := "#!/bin/sh\nexec '" + strings.Join(b.command, "' '") + "' \"$@\"\n"
		if err := os.WriteFile(server, []byte(text), 0o700); err != nil {
			return err
		}
		env = append(env, "MYSQLD_BOOTSTRAP="+server)
	}
	// Force: this host may be without a name that resolves.
	args = append(args, "--force", "--auth-root-authentication-method=normal", "--skip-test-db", "--datadir="+data)
	return run(ctx, env, script, args...)
}

// installScript is the one that came with the server, or any.
func (b binary) installScript() (string, error) {
	bin := filepath.Join(filepath.Dir(b.command[len(b.command)-1]), "../bin")
	for _, name := range []string{"mariadb-install-db", "mysql_install_db"} {
		if paths := installed(name, bin); len(paths) > 0 {
			return paths[0], nil
		}
	}
	return "", fmt.Errorf("%s has no mariadb-install-db beside it", b.origin)
}

// asRoot allows the servers to run as root, which they refuse by default.
func asRoot() []string {
	if os.Geteuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

// adminSQL makes the administrator. The server runs it at every start, one
// statement a line. The anonymous users that MariaDB comes with must go: they
// would win over a named user from any host.
func (i *instance) adminSQL(engine Engine) string {
	text := ""
	if engine == MariaDB {
		text = "DELETE FROM mysql.global_priv WHERE User = '';\nFLUSH PRIVILEGES;\n"
	}
	for _, host := range []string{"%", "localhost"} {
		account := fmt.Sprintf("'%s'@'%s'", i.user, host)
		text += fmt.Sprintf("CREATE USER IF NOT EXISTS %s IDENTIFIED BY '%s';\n", account, i.password)
		text += fmt.Sprintf("GRANT ALL ON *.* TO %s WITH GRANT OPTION;\n", account)
	}
	return text
}
