package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/spf13/cobra"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/schema"
)

func (a *app) install() *cobra.Command {
	views := false
	cmd := &cobra.Command{
		Use: "install", Args: cobra.NoArgs,
		Short: "Make the tables, and on MySQL the procedures",
		Long: `Make the tables that are missing, and on MySQL the procedures. What exists stays as it
is. --views also makes the views lockstep_held and lockstep_waits, for any SQL client.

Privileges: CREATE, SELECT, INSERT, UPDATE, DELETE on the database; CREATE ROUTINE and
ALTER ROUTINE for the procedures; CREATE VIEW and DROP for the views. lockstep sql install
prints the statements for somebody who has them.`,
		RunE: a.with(func(ctx context.Context, _ []string) error {
			what := "Make lockstep's tables and procedures, where they are missing"
			if views {
				what += ", and the views lockstep_held and lockstep_waits"
			}
			if err := a.sure(what + "."); err != nil {
				return err
			}
			if err := schema.Install(ctx, a.db); err != nil {
				return err
			}
			if views {
				if err := schema.InstallViews(ctx, a.db); err != nil {
					return err
				}
			}
			a.say("Installed. lockstep check, as the user of the programs, tells what that user lacks.")
			return nil
		}),
	}
	cmd.Flags().BoolVar(&views, "views", false, "make the views, too")
	return a.changes(cmd)
}

func (a *app) check() *cobra.Command {
	var nodes []string
	problems := false
	cmd := &cobra.Command{
		Use: "check", Args: cobra.NoArgs,
		Short: "Examine server, tables, privileges and settings",
		Long: `Examine all that locks and leases depend on, and say what to do about each finding.
Call it as the user of the programs, whose privileges count. --node compares the clocks of
other servers of the cluster, with the same user and password.

The exit code is 3 if there is a fault, and 0 for warnings.

Privileges: those of the programs.`,
		RunE: a.with(func(ctx context.Context, _ []string) error {
			others, err := a.nodes(nodes)
			if err != nil {
				return err
			}
			found, err := ops.New(a.db).Check(ctx, others...)
			for _, node := range others {
				err = errors.Join(err, node.Close())
			}
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(findingsForm{found})
			} else {
				a.findings(found, problems)
			}
			faults := 0
			for _, f := range found {
				if f.State == ops.Fault {
					faults++
				}
			}
			if err == nil && faults > 0 {
				return failed(trouble, "%d of %d subjects have a fault", faults, len(found))
			}
			return err
		}),
	}
	cmd.Flags().StringSliceVar(&nodes, "node", nil, "host:port of another server of the cluster")
	cmd.Flags().BoolVar(&problems, "problems", false, "leave out what is right")
	return cmd
}

func (a *app) findings(found []ops.Finding, problems bool) {
	var rows [][]string
	for _, f := range found {
		text := f.Text
		if f.State != ops.OK {
			text = "see below"
		}
		if !problems || f.State != ops.OK {
			rows = append(rows, []string{f.Name, string(f.State), text})
		}
	}
	if len(rows) == 0 {
		a.say("All is right.")
		return
	}
	table(a.out, "SUBJECT STATE FINDING", rows)
	for _, f := range found {
		if f.State != ops.OK {
			a.say("\n%s (%s): %s\n  Remedy: %s", f.Name, f.State, strings.TrimPrefix(f.Text, "schema: "), f.Cure)
		}
	}
}

// nodes makes a pool for each of the other servers.
func (a *app) nodes(addresses []string) (all []*sql.DB, err error) {
	for _, address := range addresses {
		config, err := a.config()
		if err != nil {
			return nil, err
		}
		config.Net, config.Addr = "tcp", address
		connector, err := mysql.NewConnector(config)
		if err != nil {
			return nil, failed(usage, "--node %s: %w", address, err)
		}
		all = append(all, sql.OpenDB(connector))
	}
	return all, nil
}

func (a *app) sql() *cobra.Command {
	maria := true
	cmd := &cobra.Command{
		Use: "sql install|views|grants|locks|leases", Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"install", "views", "grants", "locks", "leases"},
		Short:     "Print statements for a DBA without this tool",
		Long: `Print the statements that make the tables or the views, grant what programs and
operators need, or show locks and leases. It needs no server: --mariadb=false is for MySQL.`,
		RunE: func(_ *cobra.Command, args []string) error {
			statements, err := statements(args[0], maria)
			if err != nil {
				return err
			}
			for _, s := range statements {
				if strings.HasPrefix(s, "CREATE PROCEDURE") {
					s = "DELIMITER //\n" + s + " //\nDELIMITER "
				}
				_, _ = fmt.Fprintln(a.out, s+";")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&maria, "mariadb", true, "for MariaDB")
	return cmd
}

func statements(what string, maria bool) ([]string, error) {
	switch what {
	case "install":
		all, err := schema.Statements()
		if err != nil || maria {
			return all, err
		}
		procedures, err := schema.Procedures()
		return append(all, procedures...), err
	case "views":
		return schema.Views(maria)
	case "grants":
		return grants(maria), nil
	case "leases":
		return []string{`SELECT CONVERT(name USING utf8mb4) AS name, slot, CONVERT(owner USING utf8mb4) AS owner, CONVERT(note USING utf8mb4) AS note,
  FROM_UNIXTIME(token / 1000000) AS since, expires_us / 1000000 - UNIX_TIMESTAMP() AS left_s
FROM lockstep_leases WHERE slot >= 0 AND CHAR_LENGTH(holds) > 0 AND expires_us > UNIX_TIMESTAMP() * 1000000 ORDER BY name, slot`}, nil
	}
	views, err := schema.Views(maria)
	if err != nil {
		return nil, err
	}
	if !maria {
		return selects(views), nil
	}
	return append([]string{"SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"}, selects(views)...), nil
}

// grants returns what programs need, in lockstep's database, and what operators need: UPDATE
// for ask and release, and the last privilege for release of locks of other users.
func grants(maria bool) (all []string) {
	for _, table := range []string{"locks", "centers", "leases", "once", "jobs"} {
		all = append(all, "GRANT SELECT, INSERT, UPDATE, DELETE ON lockstep_"+table+" TO 'app'@'%'", "GRANT SELECT ON lockstep_"+table+" TO 'operator'@'%'")
	}
	all = append(all, "GRANT UPDATE ON lockstep_leases TO 'operator'@'%'")
	if maria {
		return append(all, "GRANT PROCESS, CONNECTION ADMIN ON *.* TO 'operator'@'%'")
	}
	for _, privilege := range []string{"EXECUTE ON `lockstep's database`.* TO 'app'", "SELECT ON performance_schema.* TO 'operator'", "PROCESS, CONNECTION_ADMIN ON *.* TO 'operator'"} {
		all = append(all, "GRANT "+privilege+"@'%'")
	}
	return all
}

// selects returns what the views select.
func selects(views []string) (all []string) {
	for _, view := range views {
		_, query, _ := strings.Cut(view, " AS\n")
		all = append(all, query)
	}
	return all
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Args: cobra.NoArgs,
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			version := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok {
				version = info.Main.Version
			}
			if a.json {
				return a.printJSON(versionForm{version})
			}
			a.say("lockstep %s", version)
			return nil
		},
	}
}
