package load

import (
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// Node is one server of a pair.
type Node struct {
	*testdb.Server
	Admin *sql.DB
}

// Pair is a primary of MariaDB and its replica, and one database on both.
type Pair struct {
	Primary, Replica Node
	DB, Copied       *testdb.DB // on the primary, and on the replica

	servers int // so far
}

// NewPair starts a pair with asynchronous replication.
func NewPair(t *testing.T) *Pair {
	t.Helper()
	p := &Pair{}
	p.Primary, p.Replica = p.node(t), p.node(t)
	p.follow(t)
	p.DB = p.Primary.Open(t)
	p.Replicated(t)
	p.Copied = p.DB.At(t, p.Replica.Server)
	return p
}

// node starts a server whose binary log is empty.
func (p *Pair) node(t *testing.T) Node {
	t.Helper()
	p.servers++
	server := testdb.Dedicated(t, testdb.MariaDB, testdb.Args(
		"--log-bin=bin", fmt.Sprintf("--server-id=%d", p.servers), "--log-slave-updates", "--binlog-format=ROW", "--gtid-strict-mode=ON",
		"--innodb-buffer-pool-size=32M", "--performance-schema=OFF", "--rpl-semi-sync-slave-enabled=ON",
	))
	n := Node{Server: server, Admin: Administrator(t, server, 0)}
	n.Execute(t, "RESET MASTER")
	return n
}

// Administrator opens a pool without a database, whose statements are answered within a time;
// 0 is for any.
func Administrator(t *testing.T, server *testdb.Server, within time.Duration) *sql.DB {
	t.Helper()
	cfg := server.Config()
	cfg.Timeout, cfg.ReadTimeout, cfg.Logger = within, within, &mysql.NopLogger{}
	return testdb.Pool(t, cfg)
}

// Execute runs statements as the administrator.
func (n Node) Execute(t *testing.T, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := n.Admin.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// follow makes the replica a copy of the primary, from the beginning on, to which nobody but
// an administrator writes.
func (p *Pair) follow(t *testing.T) {
	t.Helper()
	cfg := p.Primary.Config()
	var port int
	check(t, p.Primary.Admin.QueryRow("SELECT @@port").Scan(&port))
	p.Replica.Execute(t, "SET GLOBAL read_only = ON", "SET GLOBAL gtid_slave_pos = ''",
		fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %d, MASTER_USER = '%s', MASTER_PASSWORD = '%s', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1", port, cfg.User, cfg.Passwd),
		"START SLAVE")
}

// Replicated returns when the replica has executed what the primary has committed.
func (p *Pair) Replicated(t *testing.T) {
	t.Helper()
	var position string
	check(t, p.Primary.Admin.QueryRow("SELECT @@gtid_binlog_pos").Scan(&position))
	var failed int
	if err := p.Replica.Admin.QueryRow("SELECT MASTER_GTID_WAIT(?, 120)", position).Scan(&failed); err != nil || failed != 0 {
		t.Fatalf("the replica doesn't follow: %d, %v", failed, err)
	}
}

// Promote makes the replica a primary, with all that it has received.
func (p *Pair) Promote(t *testing.T) {
	t.Helper()
	// In this order: a replica that is started with both threads stopped deletes what
	// it has received, to ask for it again by GTID.
	p.Replica.Execute(t, "START SLAVE SQL_THREAD", "STOP SLAVE IO_THREAD")
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		var executed string
		check(t, p.Replica.Admin.QueryRow("SELECT @@gtid_slave_pos").Scan(&executed))
		// Of a transaction that the primary was about to send the replica may have a part, which it
		// never executes, and has acknowledged to nobody: it is not in Gtid_IO_Pos.
		status := slaveStatus(t, p.Replica.Admin)
		if executed == status["Gtid_IO_Pos"] {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the replica doesn't execute what it has received: %v", status)
		}
	}
	p.Replica.Execute(t, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF")
}

// SemiSynchronous makes the primary wait, for ever, until the replica has received what it
// commits.
func (p *Pair) SemiSynchronous(t *testing.T) {
	t.Helper()
	p.Primary.waitForReplica(t)
	p.Replica.Execute(t, "STOP SLAVE", "START SLAVE") // it asks the primary when it connects
	p.acknowledged(t)
}

func (n Node) waitForReplica(t *testing.T) {
	t.Helper()
	n.Execute(t, "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'",
		"SET GLOBAL rpl_semi_sync_master_timeout = 3600000", "SET GLOBAL rpl_semi_sync_master_enabled = ON")
}

// WaitNoMore frees the sessions of a primary that wait for a replica.
func (n Node) WaitNoMore(t *testing.T) {
	if _, err := n.Admin.Exec("SET GLOBAL rpl_semi_sync_master_enabled = OFF"); err != nil && n.Running() {
		t.Error(err)
	}
}

// acknowledged returns when the primary has a replica that acknowledges, and that has received
// all that the primary has: it can be promoted then without a loss.
func (p *Pair) acknowledged(t *testing.T) {
	t.Helper()
	var all string
	check(t, p.Primary.Admin.QueryRow("SELECT @@gtid_binlog_pos").Scan(&all))
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		var name, clients string
		check(t, p.Primary.Admin.QueryRow("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'").Scan(&name, &clients))
		received := slaveStatus(t, p.Replica.Admin)["Gtid_IO_Pos"]
		if clients == "1" && sequence(t, received) >= sequence(t, all) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the primary has %s replicas that acknowledge, want 1; it has received %q of %q", clients, received, all)
		}
	}
}

// sequence returns the last number of a GTID, which is domain-server-number.
func sequence(t *testing.T, gtid string) int {
	t.Helper()
	if gtid == "" {
		return 0
	}
	n, err := strconv.Atoi(gtid[strings.LastIndexByte(gtid, '-')+1:])
	check(t, err)
	return n
}

// FailOver promotes the replica of a semi-synchronous pair, has the clients routed to it, and
// gives it a replica that is new: without one it acknowledges nothing. It returns the old
// primary, in the state that it was in.
func (p *Pair) FailOver(t *testing.T, route func(primary *testdb.Server)) (old Node) {
	t.Helper()
	p.Promote(t)
	old = p.Primary
	p.Primary, p.DB = p.Replica, p.Copied
	p.Primary.waitForReplica(t)
	route(p.Primary.Server)
	p.Replica = p.node(t)
	p.follow(t)
	p.acknowledged(t)
	p.Copied = p.DB.At(t, p.Replica.Server)
	return old
}

func slaveStatus(t *testing.T, db *sql.DB) map[string]string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SHOW SLAVE STATUS")
	check(t, err)
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil || !rows.Next() {
		t.Fatalf("no replication: %v, %v", err, rows.Err())
	}
	values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	check(t, rows.Scan(into...))
	status := make(map[string]string)
	for i, column := range columns {
		status[column] = values[i].String
	}
	return status
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
