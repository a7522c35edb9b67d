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
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/schema"
)

func (a *app) install() *cobra.Command {
	views := false
	cmd := &cobra.Command{
		Use: "install", Args: cobra.NoArgs,
		Short: "Create the tables, and on MySQL the procedures",
		Long: `Create the tables that are missing, and on MySQL the procedures. Existing tables stay as
they are. --views also creates the views lockstep_held and lockstep_waits, for any SQL client.

Privileges: CREATE and INSERT on the database; on MySQL CREATE ROUTINE, and ALTER ROUTINE
to replace procedures of other users; for the views CREATE VIEW, DROP and SELECT,
on MySQL SELECT on performance_schema.* as well. lockstep sql install prints the
statements for a user with these privileges.`,
		RunE: a.with(func(ctx context.Context, _ []string) error {
			what := "Make lockstep's tables and procedures, where they are missing"
			if views {
				what += ", and the views lockstep_held and lockstep_waits"
			}
			if err := a.sure(ctx, what+"."); err != nil {
				return err
			}
			err := schema.Install(ctx, a.db)
			if err == nil && views {
				err = schema.InstallViews(ctx, a.db)
			}
			if errors.Is(err, schema.ErrPrivilege) {
				text, _, _ := strings.Cut(err.Error(), ": Error ") // the GRANT comes before it
				err = failed(declined, "%s", text)
			}
			return a.installed(ctx, err)
		}),
	}
	cmd.Flags().BoolVar(&views, "views", false, "make the views, too")
	return a.changes(cmd)
}

// installed says what there is now, also where an error came before.
func (a *app) installed(ctx context.Context, err error) error {
	there, unseen := a.there(ctx)
	switch {
	case err != nil && unseen != nil:
		return err // the server doesn't answer, most likely
	case unseen != nil:
		return unseen
	case a.json:
		err = errors.Join(a.printJSON(there), err)
	case err != nil:
		a.say("There are %d tables, %d views and %d procedures now.", len(there.Tables), len(there.Views), len(there.Procedures))
	}
	if err != nil {
		return err
	}
	if err := a.lacking(ctx, there.Procedures); err != nil {
		return err
	}
	if !a.json {
		a.say("Installed. Run lockstep check as the user of the programs to see what that user lacks.")
	}
	return nil
}

// there returns what there is of lockstep in the database.
func (a *app) there(ctx context.Context) (installedForm, error) {
	there := installedForm{[]string{}, []string{}, []string{}}
	rows, err := a.db.QueryContext(ctx, `SELECT table_type, table_name FROM information_schema.TABLES WHERE table_schema = DATABASE() AND table_name LIKE 'lockstep|_%' ESCAPE '|'
		UNION ALL SELECT routine_type, routine_name FROM information_schema.ROUTINES WHERE routine_schema = DATABASE() AND routine_name LIKE 'lockstep|_%' ESCAPE '|'
		ORDER BY 2 LIMIT 1000`)
	if err != nil {
		return there, err
	}
	defer func() { _ = rows.Close() }() // they were read
	into := map[string]*[]string{"BASE TABLE": &there.Tables, "VIEW": &there.Views, "PROCEDURE": &there.Procedures}
	for rows.Next() {
		var kind, name string
		if err := rows.Scan(&kind, &name); err != nil {
			return there, err
		}
		if list := into[kind]; list != nil {
			*list = append(*list, name)
		}
	}
	return there, rows.Err()
}

// lacking says that the procedures could not be made, which is no error: locks do without.
func (a *app) lacking(ctx context.Context, procedures []string) error {
	var version, database string
	if err := a.db.QueryRowContext(ctx, "SELECT @@version, DATABASE()").Scan(&version, &database); err != nil {
		return err
	}
	if len(procedures) == 0 && rawsql.EngineOf(version).Procedures {
		_, _ = fmt.Fprintf(a.err, "There are no procedures that this user may see, and without them locks take one round trip more: GRANT CREATE ROUTINE, ALTER ROUTINE ON `%s`.* TO %s, and install again.\n", database, a.grantee())
	}
	return nil
}

func (a *app) check() *cobra.Command {
	var nodes []string
	problems := false
	cmd := &cobra.Command{
		Use: "check", Args: cobra.NoArgs,
		Short: "Examine server, tables, privileges and settings",
		Long: `Examine all that locks and leases depend on, and print the fix for each finding. Run it
as the user of the programs, whose privileges it checks. --node compares the clocks of
other servers of the cluster, with the same user and password.

The exit code is 3 if there is an error, and 0 for warnings.

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
			failing := 0
			for _, f := range found {
				if f.State == ops.Error {
					failing++
				}
			}
			if err == nil && failing > 0 {
				return failed(trouble, "%d of %d subjects have errors", failing, len(found))
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
			a.say("\n%s (%s): %s\n  Fix: %s", f.Name, f.State, strings.TrimPrefix(f.Text, "schema: "), f.Fix)
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
		config.Net, config.Addr, config.DBName, config.Logger = "tcp", address, "", &mysql.NopLogger{}
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
		Long: `Print the statements that create the tables or the views, grant what programs and
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
	engine := rawsql.MySQL
	if maria {
		engine = rawsql.MariaDB
	}
	switch what {
	case "install":
		all, err := schema.Statements()
		if err != nil || maria {
			return all, err
		}
		procedures, err := schema.Procedures()
		return append(all, procedures...), err
	case "views":
		return schema.Views(engine.Name)
	case "grants":
		return grants(maria), nil
	case "leases":
		return []string{`SELECT CONVERT(name USING utf8mb4) AS name, slot, CONVERT(owner USING utf8mb4) AS owner, CONVERT(label USING utf8mb4) AS label,
  FROM_UNIXTIME(token / 1000000) AS since, expires_us / 1000000 - UNIX_TIMESTAMP() AS left_s
FROM lockstep_leases WHERE slot >= 0 AND CHAR_LENGTH(holders) > 0 AND expires_us > UNIX_TIMESTAMP() * 1000000 ORDER BY name, slot`}, nil
	}
	views, err := schema.Views(engine.Name)
	if err != nil {
		return nil, err
	}
	if !maria {
		return selects(views), nil
	}
	return append([]string{"SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"}, selects(views)...), nil
}

// grants returns what programs need, in lockstep's database, and what operators need: INSERT and
// UPDATE for ask and release, and the last privilege for release of locks of other users.
func grants(maria bool) (all []string) {
	for _, table := range []string{"locks", "centers", "leases", "once", "jobs"} {
		all = append(all, "GRANT SELECT, INSERT, UPDATE, DELETE ON lockstep_"+table+" TO 'app'@'%'", "GRANT SELECT ON lockstep_"+table+" TO 'operator'@'%'")
	}
	all = append(all, "GRANT INSERT, UPDATE ON lockstep_leases TO 'operator'@'%'")
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
