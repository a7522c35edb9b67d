package testdb

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-sql-driver/mysql"
)

// givenTimeout is how long a server that is given by its DSN may take to answer.
const givenTimeout = 10 * time.Second

// Given returns the server of an engine's DSN, if the environment has one. An error names the
// variable: nothing answers there within ten seconds, or another engine does.
func Given(ctx context.Context, engine Engine) (server *Server, ok bool, err error) {
	dsn := os.Getenv(engine.DSNVariable())
	if dsn == "" {
		return nil, false, nil
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", engine.DSNVariable(), err)
	}
	cfg.DBName = ""
	version, err := versionOf(ctx, cfg)
	if err != nil {
		return nil, false, fmt.Errorf("%s: no server that can be used at %s: %w; start one there, correct the variable, or unset it", engine.DSNVariable(), cfg.Addr, err)
	}
	if engineOf(version) != engine {
		return nil, false, fmt.Errorf("%s: the server at %s is not %s: its version is %s", engine.DSNVariable(), cfg.Addr, engine, version)
	}
	return &Server{engine: engine, config: cfg}, true, nil
}

// versionOf asks a server for its version.
func versionOf(ctx context.Context, cfg *mysql.Config) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, givenTimeout)
	defer cancel()
	cfg = cfg.Clone()
	cfg.Timeout, cfg.ReadTimeout = givenTimeout, givenTimeout // for what listens and never says a word
	pool, err := open(cfg)
	if err != nil {
		return "", err
	}
	defer func() { _ = pool.Close() }()
	err = pool.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
	return version, err
}
