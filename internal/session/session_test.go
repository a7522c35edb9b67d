package session_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// reply is that of a session of shop, with other settings.
func reply(version string, replace ...string) (row [session.Columns]string) {
	for i, v := range session.Reply(version, "host/3306/shop") {
		row[i] = v.(string)
	}
	row[5] = strings.NewReplacer(replace...).Replace(row[5])
	return row
}

// TestRead reads replies, and refuses each whose settings aren't known to be right.
func TestRead(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"9.7.4", "11.8.9-MariaDB-0+deb13u1 from Debian"} {
		f, err := session.Read(reply(version))
		testdb.ErrorIf(t, err != nil || f.Unfit != nil || f.Version != version || f.ID != 7 || f.Name != "host/3306/shop" || f.ClockUs == 0 || f.Isolation != sql.LevelRepeatableRead,
			"%+v, %v", f, err)
	}
	for _, c := range []struct {
		from, to string
		want     error
		says     string
	}{
		{"sql_mode=STRICT_TRANS_TABLES", "sql_mode=", nil, ""},
		{"sql_mode=", "sql_mode=ANSI,ORACLE,", nil, ""},
		{"REPEATABLE-READ", "READ-UNCOMMITTED", nil, ""},
		{"autocommit=1", "autocommit=0", session.ErrAutocommit, "autocommit = 0"},
		{"autocommit=1", "", session.ErrAutocommit, "autocommit = 0"},
		{"one_charset=1", "one_charset=0", session.ErrCharset, "charset=utf8mb4"},
		{"NO_CHAIN", "CHAIN", session.ErrSession, `completion_type = "CHAIN"`},
		{"NO_CHAIN", "RELEASE", session.ErrSession, "don't SET it"},
		{"DEFAULT", "fixed", session.ErrSession, `timestamp = "fixed"`},
		{"REPEATABLE-READ", "SNAPSHOT", session.ErrSession, `isolation = "SNAPSHOT"`},
		{"isolation=REPEATABLE-READ", "isolation=", session.ErrProxy, "removes comments"},
		{"sql_mode=", "sql_mode=NEW,", session.ErrSession, `sql_mode = "NEW"`},
		{"sql_mode=", "mode=", session.ErrSession, "sql_mode"},
		{"settings:", "s\x00e\x00", session.ErrCharset, "character_set_results"},
	} {
		f, err := session.Read(reply("9.7.4", c.from, c.to))
		testdb.ErrorIf(t, err != nil || !errors.Is(f.Unfit, c.want) || c.want != nil && (!errors.Is(f.Unfit, session.ErrSession) && !errors.Is(f.Unfit, session.ErrProxy) || !strings.Contains(f.Unfit.Error(), c.says)),
			"%q in place of %q: %v, %v", c.to, c.from, f.Unfit, err)
	}
	for _, version := range []string{"", "of our own"} {
		f, err := session.Read(reply(version))
		testdb.ErrorIf(t, err == nil, "%+v of the version %q", f, version)
	}
	if err := session.Elsewhere("host/3306/other", "host/3306/shop"); !errors.Is(err, session.ErrSession) {
		t.Error(err)
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]struct{ mariaDB, snapshot bool }{
		"9.7.4": {}, "8.0.36-28.1": {}, "5.7.44-log": {}, "": {}, "MariaDB": {mariaDB: true},
		"10.5.25-MariaDB": {mariaDB: true}, "10.6.17-MariaDB": {mariaDB: true}, "10.6.18-MariaDB-log": {true, true},
		"10.11.7-MariaDB-0+deb12u1": {mariaDB: true}, "10.11.8-MariaDB": {true, true}, "10.11.19-MariaDB-0+deb12u1": {true, true},
		"11.0.5-MariaDB": {mariaDB: true}, "11.0.6-MariaDB": {true, true}, "11.1.4-MariaDB": {mariaDB: true}, "11.1.5-MariaDB": {true, true},
		"11.2.3-MariaDB": {mariaDB: true}, "11.2.4-MariaDB": {true, true}, "11.3.2-MariaDB": {mariaDB: true},
		"11.4.1-MariaDB": {mariaDB: true}, "11.4.2-MariaDB": {true, true}, "11.5.1-MariaDB": {true, true}, "11.8.3-MariaDB": {true, true}, "12.0.2-MariaDB": {true, true},
	} {
		s := session.NewServer(session.Facts{Version: version, ID: 7, RollbackOnTimeout: true, Name: "name"})
		testdb.ErrorIf(t, (s.Engine == rawsql.MariaDB) != want.mariaDB || s.SnapshotIsolation != want.snapshot,
			"%q: MariaDB %t, snapshot isolation %t", version, s.Engine == rawsql.MariaDB, s.SnapshotIsolation)
		testdb.ErrorIf(t, s.Session != 7 || !s.RollbackOnTimeout || s.Name != "name", "%q: %+v", version, s)
	}
}

// TestTiDB: a session of TiDB is fit if all that it says is known, on what asks for it, and on nothing else.
func TestTiDB(t *testing.T) {
	t.Parallel()
	const fit = rawsql.SettingsBegin + " tidb_txn_mode=pessimistic tidb_constraint_check_in_place_pessimistic=1 tidb_skip_isolation_level_check=0 tidb_dml_type=standard tidb_batch_writes=0 tidb_old_reads=0"
	read := func(version string, replace ...string) session.Facts {
		f, err := session.Read(reply(version, append(replace, "sees_own_id=1", "sees_own_id=0")...))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	const version = "8.0.11-TiDB-v8.5.0"
	if f := read("8.0.11"); f.Question() != "" || !errors.Is(f.Unfit, session.ErrEngine) {
		t.Errorf("another engine: %q, %v", f.Question(), f.Unfit)
	}
	f := read(version)
	testdb.ErrorIf(t, f.Question() == "" || !errors.Is(f.Unfit, session.ErrEngine) || !strings.Contains(f.Unfit.Error(), "on TiDB"),
		"before it is asked: %q, %v", f.Question(), f.Unfit)
	f = f.Answered(fit, true)
	testdb.ErrorIf(t, f.Unfit != nil || f.Question() != "" || f.Isolation != sql.LevelRepeatableRead, "%v, %v", f.Unfit, f.Isolation)
	for what, unfit := range map[string]error{
		"tidb_txn_mode":     read(version).Answered(strings.Replace(fit, "pessimistic ", "optimistic ", 1), true).Unfit,
		"tidb_old_reads":    read(version).Answered(strings.Replace(fit, "old_reads=0", "old_reads=1", 1), true).Unfit,
		"tidb_dml_type":     read(version).Answered(strings.Replace(fit, "tidb_dml_type=standard", "", 1), true).Unfit,
		"isolation":         read(version, "REPEATABLE-READ", "SERIALIZABLE").Answered(fit, true).Unfit,
		"autocommit":        read(version, "autocommit=1", "autocommit=0").Answered(fit, true).Unfit,
		"tidb_batch_writes": read(version).Answered(rawsql.SettingsBegin, true).Unfit,
	} {
		testdb.ErrorIf(t, !errors.Is(unfit, session.ErrSession) || !strings.Contains(unfit.Error(), what), "%s: %v", what, unfit)
	}
	f = read(version).Answered("nothing", true)
	testdb.ErrorIf(t, !errors.Is(f.Unfit, session.ErrEngine), "a reply that can't be read: %v", f.Unfit)
}

// TestVitess: what Vitess is asked again counts, by a text that no other session sends. Only transactions of the program need the mode of one shard.
func TestVitess(t *testing.T) {
	t.Parallel()
	row := reply("8.4.6-Vitess", "sees_own_id=1", "sees_own_id=0")
	f, err := session.Read(row)
	first := f.Question()
	testdb.FatalIf(t, err != nil || f.Question() == first || !errors.Is(f.Unfit, session.ErrEngine), "%v, %q, %v", err, first, f.Unfit)
	again := strings.Replace(row[5], "REPEATABLE-READ", "READ-COMMITTED", 1) + " transaction_mode=multi workload=oltp target=0 X"
	if f := f.Answered(again, false); f.Unfit != nil || f.Isolation != sql.LevelReadCommitted {
		t.Errorf("%v, %v", f.Unfit, f.Isolation)
	}
	f = f.Answered(again, true)
	testdb.ErrorIf(t, !errors.Is(f.Unfit, session.ErrSession) || !strings.Contains(f.Unfit.Error(), "transaction_mode"), "%v", f.Unfit)
}
