package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// place is the name of the process that has the clients, among those of the servers.
const place = "clients"

// tables are those of the locks; only lockstep_leases of a node is used.
var tables = []string{"lockstep_locks", "lockstep_centers", "lockstep_leases", "lockstep_once", "lockstep_jobs"}

// clientFigures are those of this process.
func clientFigures() (map[string]float64, error) {
	runtime.GC()
	runtime.GC() // the second frees what finalizers and pools have kept
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	rss, err := residentBytes()
	return map[string]float64{
		"heap_bytes": float64(memory.HeapAlloc),
		"rss_bytes":  rss,
		"goroutines": float64(runtime.NumGoroutine()),
	}, err
}

// residentBytes is what the process has in memory.
func residentBytes() (float64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if rest, found := strings.CutPrefix(string(line), "VmRSS:"); found {
			kilobytes, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kilobytes * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no VmRSS")
}

// processorTime is what the process has used so far.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// serverFigures are those of the server and its tables.
func (s *site) serverFigures(ctx context.Context) (map[string]float64, error) {
	figures := make(map[string]float64)
	for name, variable := range map[string]string{"threads": "Threads_connected", "prepared_statements": "Prepared_stmt_count", "statements": "Questions"} {
		var ignored string
		var value float64
		if err := s.admin.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE '"+variable+"'").Scan(&ignored, &value); err != nil {
			return nil, err
		}
		figures[name] = value
	}
	var history float64
	if err := s.admin.QueryRowContext(ctx, "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'").Scan(&history); err != nil {
		return nil, err
	}
	figures["history_list"] = history
	if s.engine == testdb.MySQL {
		// The sizes of tables are a day old else.
		if _, err := s.admin.ExecContext(ctx, "SET SESSION information_schema_stats_expiry = 0"); err != nil {
			return nil, err
		}
	}
	for _, table := range tables {
		if err := s.tableFigures(ctx, s.database(0), table, table, figures); err != nil {
			return nil, err
		}
	}
	for i := range nodes {
		if err := s.tableFigures(ctx, s.database(i+1), "lockstep_leases", "nodes_leases", figures); err != nil {
			return nil, err
		}
	}
	return figures, nil
}

// tableFigures adds the rows and the bytes of a table.
func (s *site) tableFigures(ctx context.Context, schema, table, name string, figures map[string]float64) error {
	if _, err := s.admin.ExecContext(ctx, fmt.Sprintf("ANALYZE LOCAL TABLE %s.%s", schema, table)); err != nil {
		return err
	}
	var rows, size float64
	if err := s.admin.QueryRowContext(ctx, fmt.Sprintf("SELECT COUNT(*) FROM %s.%s", schema, table)).Scan(&rows); err != nil {
		return err
	}
	err := s.admin.QueryRowContext(ctx, "SELECT data_length + index_length FROM information_schema.tables WHERE table_schema = ? AND table_name = ?", schema, table).Scan(&size)
	figures["rows "+name] += rows
	figures["bytes "+name] += size
	return err
}
