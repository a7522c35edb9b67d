package site_test

import (
	"fmt"
	"testing"

	"github.com/dca00107/lockstep/bench/site"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// TestDurable proves that a server that keeps commits in memory is called that.
func TestDurable(t *testing.T) {
	t.Parallel()
	type settings = []site.Setting
	flush := func(value string) site.Setting {
		return site.Setting{Name: "innodb_flush_log_at_trx_commit", Value: value}
	}
	log, sync := site.Setting{Name: "log_bin", Value: "ON"}, site.Setting{Name: "sync_binlog", Value: "0"}
	for _, c := range []struct {
		settings settings
		want     bool
	}{
		{settings{flush("1")}, true},
		{settings{flush("2")}, false},
		{settings{flush("1"), sync}, true},
		{settings{flush("1"), sync, log}, false},
	} {
		testdb.Equal(t, fmt.Sprint(c.settings, ": durable"), (&site.Server{Settings: c.settings}).Durable(), c.want)
	}
	if !(&site.Redis{Settings: settings{{Name: "appendonly", Value: "yes"}, {Name: "appendfsync", Value: "always"}}}).Durable() ||
		(&site.Redis{Settings: settings{{Name: "appendonly", Value: "yes"}, {Name: "appendfsync", Value: "everysec"}}}).Durable() {
		t.Error("what is durable is not called that, or what isn't is")
	}
}
