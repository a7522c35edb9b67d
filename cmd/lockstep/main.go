// Command lockstep shows operators the holders of locks and leases, lock waits, and problems of
// the setup, and lets them release locks.
//
// README.md has the commands, the ways to give it a server, and the exit codes.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"
	"github.com/spf13/cobra"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/txlock"
)

func failed(code int, format string, args ...any) error {
	return failure{code, fmt.Errorf(format, args...)}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the command without the process around it.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	written := &output{Writer: stdout}
	a := &app{in: stdin, screen: stdout, out: written, err: stderr, getenv: getenv}
	for _, arg := range args { // one that belongs into a flag, perhaps
		if name := inNames.FindStringSubmatch(arg); name != nil {
			a.hide(name[1])
		}
	}
	root := a.command()
	root.SetArgs(append([]string{}, args...)) // nil would be those of the process
	root.SetIn(stdin)
	root.SetOut(written)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	code := done
	if err == nil && written.err != nil {
		err = failed(trouble, "write the output: %w", written.err)
	}
	if err != nil {
		text := ""
		text, code = a.explained(err)
		_, _ = fmt.Fprintln(stderr, "lockstep:", printable(a.scrub(text)))
	}
	if a.db != nil {
		_ = a.db.Close() // nothing is open in it
	}
	return code
}

// app is one run of the command.
type app struct {
	in       io.Reader
	typed    *bufio.Reader // see lines
	out, err io.Writer
	screen   io.Writer // what out writes to
	getenv   func(string) string

	server  server
	json    bool
	yes     bool
	timeout time.Duration
	keys    string

	db      *sql.DB
	given   *mysql.Config // see config
	secrets []string      // see hide
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "lockstep",
		Short: "Show lock holders and waits, and end them",
		Long: `lockstep shows the locks and leases of programs that use the Go package
github.com/dca00107/lockstep on MariaDB or MySQL.

` + servers + `

Exit codes: 0 done, 1 not found or nothing to do, 2 wrong usage, 3 the server or the
way to it, 4 declined, by you or for want of a privilege.`,
		SilenceUsage: true, SilenceErrors: true,
		Args: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return failed(usage, "there is no command %q: see lockstep --help", args[0])
			}
			return cmd.Help()
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		text, _, _ := strings.Cut(err.Error(), " in -") // -psecret
		return failed(usage, "%s: see %s --help", text, cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	a.server.flags(flags)
	flags.BoolVar(&a.json, "json", false, "print JSON, whose form stays")
	flags.DurationVar(&a.timeout, "timeout", 30*time.Second, "give up after this time")
	root.AddCommand(a.locks(), a.leases(), a.waits(), a.show(), a.ask(), a.release(), a.jobs(), a.once(), a.leaders(),
		a.install(), a.check(), a.purge(), a.sql(), a.top(), a.bench(), a.version())
	asUsage(root)
	return root
}

// asUsage makes wrong arguments of the commands below one a wrong usage.
func asUsage(parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		if args := cmd.Args; args != nil {
			cmd.Args = func(cmd *cobra.Command, given []string) error {
				if err := args(cmd, given); err != nil {
					return failed(usage, "%w: see %s --help", err, cmd.CommandPath())
				}
				return nil
			}
		}
		asUsage(cmd)
	}
}

// with opens the pool, and limits the time of what is done.
func (a *app) with(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return a.opened(func(ctx context.Context, args []string) error {
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		return do(ctx, args)
	})
}

// opened opens the pool.
func (a *app) opened(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := a.open(); err != nil {
			return err
		}
		return do(cmd.Context(), args)
	}
}

// unquoted reads a key, or its beginning, as ops.Shown writes it: a Go string if it is in quotes.
func unquoted(arg string) (string, error) {
	if len(arg) < 2 || !strings.HasPrefix(arg, `"`) || !strings.HasSuffix(arg, `"`) {
		return arg, nil
	}
	text, err := strconv.Unquote(arg)
	if err != nil {
		return "", failed(usage, "%s is not a key in quotes: they must be those of a Go string", arg)
	}
	return text, nil
}

// keyOf reads a key that may be one of lockstep's own.
func keyOf(arg string) (string, error) {
	key, err := unquoted(arg)
	if err == nil && (key == "" || len(key) > 255 || !utf8.ValidString(key)) {
		err = failed(usage, "%q is no key: one has 1 to 255 bytes of valid UTF-8", key)
	}
	return key, err
}

// programKeyOf reads a key of a program.
func programKeyOf(arg string) (string, error) {
	key, err := unquoted(arg)
	if err != nil {
		return "", err
	}
	return key, coded(txlock.ParseKey(key).Validate())
}

// look takes a picture, whose slots are named by the keys of --keys and these.
func (a *app) look(ctx context.Context, keys ...string) (*ops.Picture, error) {
	more, err := a.wordlist()
	if err != nil {
		return nil, err
	}
	p, err := ops.New(a.db).Look(ctx, append(more, keys...)...)
	if errors.Is(err, ops.ErrNoDatabase) {
		return nil, failure{usage, err}
	}
	return p, err
}
