package tests

import (
	"bufio"
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// The environment of a process of TestOnceProcesses: the DSN, the table of the effects, and
// whether it asks Once or not.
const (
	askerDSN   = "LOCKSTEP_TEST_ONCE_DSN"
	askerTable = "LOCKSTEP_TEST_ONCE_TABLE"
	askerKind  = "LOCKSTEP_TEST_ONCE_KIND"
)

// The kinds of processes.
const (
	withOnce    = "with Once"
	withoutOnce = "without Once"
)

// init makes this test binary that process.
func init() {
	if dsn := os.Getenv(askerDSN); dsn != "" {
		if err := answer(dsn, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// answer answers each line, which is a number and a key, all at once, until the input ends.
// It writes lines of the number, a word and an answer:
//
//	first   the transaction was the first, and this is what it has written
//	again   another one was the first, and this is its answer
//	unknown nobody knows whether this was written; it asks again
//	nothing this was not written, says the error; it asks again
//	wrong   any other error
func answer(dsn string, in io.Reader) error {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	pool := sql.OpenDB(locksqlc.Connector(connector))
	pool.SetMaxOpenConns(10)
	pool.SetMaxIdleConns(10)
	call := once
	if os.Getenv(askerKind) == withoutOnce {
		call = check
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		number, name, _ := strings.Cut(lines.Text(), " ")
		go func() {
			for {
				wrote := ""
				got, first, err := call(pool, name, &wrote)
				word, text := wordOf(first, err), got
				if err != nil {
					text = wrote
				}
				if word == "wrong" {
					text = strings.ReplaceAll(err.Error(), "\n", " ")
				}
				fmt.Println(number, word, text)
				if err == nil || word == "wrong" {
					return
				}
				time.Sleep(mathrand.N(50 * time.Millisecond))
			}
		}()
	}
	return lines.Err()
}

// effect is what must be done once. The transaction stays open for a while, so that faults
// meet it.
func effect(tx *sql.Tx, name string, wrote *string) (string, error) {
	*wrote = rand.Text()
	_, err := tx.Exec("INSERT INTO "+os.Getenv(askerTable)+" (name, answer) VALUES (?, ?)", name, *wrote)
	time.Sleep(mathrand.N(20 * time.Millisecond))
	return *wrote, err
}

func once(pool *sql.DB, name string, wrote *string) (string, bool, error) {
	return locksqlc.OnceValue(context.Background(), pool, txlock.Named(name), func(tx *sql.Tx) (string, error) {
		return effect(tx, name, wrote)
	}, txlock.Fingerprint([]byte(name)))
}

// check is what programs do that have no Once.
func check(pool *sql.DB, name string, wrote *string) (got string, first bool, err error) {
	err = locksqlc.Run(context.Background(), pool, nil, func(tx *sql.Tx) error {
		err := tx.QueryRow("SELECT answer FROM "+os.Getenv(askerTable)+" WHERE name = ?", name).Scan(&got)
		first = errors.Is(err, sql.ErrNoRows)
		if first {
			got, err = effect(tx, name, wrote)
		}
		return err
	})
	return got, first, err
}

// wordOf says what a call has told its caller.
func wordOf(first bool, err error) string {
	var server *mysql.MySQLError
	var network net.Error
	switch {
	case err == nil && first:
		return "first"
	case err == nil:
		return "again"
	case errors.As(err, &server) && !fault.Unknown(err):
		if txlock.Retryable(err) || server.Number == 1040 || server.Number == 1205 { // too many connections, a wait
			return "nothing"
		}
	case fault.Unknown(err) && (server != nil || errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn)):
		return "unknown"
	}
	return "wrong"
}
