package main

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/spf13/pflag"
	"gopkg.in/ini.v1"
)

// servers says how the server is given, for --help.
const servers = `The server is given by one of these, the first that is there:
  --dsn              a data source name without a password: others see it in the list
                     of processes
  --dsn-file         a file with the data source name, - for the standard input
  --defaults-file    a my.cnf, whose groups client and lockstep count, or --group
  $LOCKSTEP_DSN      user:password@tcp(host:3306)/database
  ~/.my.cnf
--database names the database, if that doesn't.`

// server is how the server is given.
type server struct {
	dsn, dsnFile, defaults, group, database string
}

func (s *server) flags(flags *pflag.FlagSet) {
	flags.StringVar(&s.dsn, "dsn", "", "data source name without a password, user@tcp(host:3306)/database")
	flags.StringVar(&s.dsnFile, "dsn-file", "", "file with the data source name, - for the standard input")
	flags.StringVar(&s.defaults, "defaults-file", "", "a my.cnf")
	flags.StringVar(&s.group, "group", "", "group of the my.cnf (default client, then lockstep)")
	flags.StringVarP(&s.database, "database", "D", "", "the database with lockstep's tables")
}

// open makes the pool. It sends nothing yet.
func (a *app) open() error {
	if a.db != nil {
		return nil
	}
	config, err := a.config()
	if err != nil {
		return err
	}
	config.Logger = &mysql.NopLogger{} // what it would say is in the errors, too
	config.ConnectionAttributes = strings.TrimPrefix(config.ConnectionAttributes+",program_name:lockstep", ",")
	config.InterpolateParams = true
	connector, err := mysql.NewConnector(config)
	if err != nil { // a collation in which text can't be quoted
		config.InterpolateParams = false
		connector, err = mysql.NewConnector(config)
	}
	if err != nil {
		return failed(usage, "the data source name: %w", err)
	}
	a.db = sql.OpenDB(connector)
	a.db.SetMaxOpenConns(8)
	return nil
}

// config returns how to reach the server. It reads that once, since the standard input has
// it once only.
func (a *app) config() (*mysql.Config, error) {
	if a.given == nil {
		config, err := a.readConfig()
		if err != nil {
			return nil, err
		}
		if a.server.database != "" {
			config.DBName = a.server.database
		}
		a.given = config
		a.hide(config.Passwd)
	}
	return a.given.Clone(), nil
}

func (a *app) readConfig() (*mysql.Config, error) {
	s := a.server
	switch {
	case s.dsn != "":
		config, err := parse(s.dsn, "--dsn")
		if err == nil && config.Passwd != "" {
			return nil, failed(usage, "--dsn has a password, which all users of this machine can see in the list of processes: use LOCKSTEP_DSN, --dsn-file or --defaults-file, and change the password if others work here")
		}
		if err == nil && a.getenv("LOCKSTEP_PASSWORD") != "" {
			config.Passwd = a.getenv("LOCKSTEP_PASSWORD")
		}
		return config, err
	case s.dsnFile != "":
		text, err := a.readDSN(s.dsnFile)
		if err != nil {
			return nil, failed(usage, "read the data source name: %w", err)
		}
		return parse(text, s.dsnFile)
	case s.defaults != "":
		return fromFile(s.defaults, s.group)
	case a.getenv("LOCKSTEP_DSN") != "":
		return parse(a.getenv("LOCKSTEP_DSN"), "LOCKSTEP_DSN")
	}
	if path := filepath.Join(a.getenv("HOME"), ".my.cnf"); exists(path) {
		return fromFile(path, s.group)
	}
	return nil, failed(usage, "no server is given: set LOCKSTEP_DSN=user:password@tcp(host:3306)/database, or see lockstep --help for other ways")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// parse reads a data source name. The driver's error may have the password in it.
func parse(dsn, from string) (*mysql.Config, error) {
	config, err := mysql.ParseDSN(strings.TrimSpace(dsn))
	if err != nil {
		return nil, failed(usage, "%s is not a data source name such as user:password@tcp(host:3306)/database", from)
	}
	return config, nil
}

// lines reads the standard input, which may have the data source name first and an answer
// below.
func (a *app) lines() *bufio.Reader {
	if a.typed == nil {
		a.typed = bufio.NewReader(a.in)
	}
	return a.typed
}

// readDSN reads the first line of a file.
func (a *app) readDSN(path string) (string, error) {
	in := a.lines()
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer func() { _ = file.Close() }() // it was only read
		in = bufio.NewReader(file)
	}
	line, err := in.ReadString('\n')
	if errors.Is(err, io.EOF) && line != "" {
		err = nil
	}
	return line, err
}

// fromFile reads a my.cnf as the clients of the servers do, but for !include.
func fromFile(path, group string) (*mysql.Config, error) {
	file, err := ini.LoadSources(ini.LoadOptions{AllowBooleanKeys: true, SkipUnrecognizableLines: true, IgnoreInlineComment: true, Loose: false}, path)
	var noFile *os.PathError
	switch {
	case errors.As(err, &noFile):
		return nil, failed(usage, "read the my.cnf: %w", err)
	case err != nil: // whose text may have the line of the password
		return nil, failed(usage, "%s is not a my.cnf file", path)
	}
	groups := []string{"client", "lockstep"}
	if group != "" {
		groups = []string{group}
	}
	found, values := false, map[string]string{}
	for _, name := range groups {
		if !file.HasSection(name) {
			continue
		}
		found = true
		for _, key := range file.Section(name).Keys() {
			values[strings.ReplaceAll(key.Name(), "_", "-")] = key.Value()
		}
	}
	if !found {
		return nil, failed(usage, "%s has no group [%s]", path, strings.Join(groups, "] or ["))
	}
	config := mysql.NewConfig()
	config.User, config.Passwd, config.DBName = values["user"], values["password"], values["database"]
	config.Net, config.Addr = "tcp", fmt.Sprintf("%s:%s", cmp.Or(values["host"], "127.0.0.1"), cmp.Or(values["port"], "3306"))
	if socket := values["socket"]; socket != "" && (values["host"] == "" || values["host"] == "localhost") {
		config.Net, config.Addr = "unix", socket
	}
	return config, encrypt(config, values, path)
}

// sslMode returns MySQL's name of what the settings ask for.
func sslMode(values map[string]string) string {
	on := func(name string) bool {
		value, is := values[name]
		return is && !slices.Contains([]string{"0", "OFF", "FALSE"}, strings.ToUpper(value))
	}
	switch _, ssl := values["ssl"]; {
	case values["ssl-mode"] != "":
		return strings.ToUpper(values["ssl-mode"])
	case on("skip-ssl") || ssl && !on("ssl"):
		return "DISABLED"
	case on("ssl-verify-server-cert"):
		return "VERIFY_IDENTITY"
	case values["ssl-ca"] != "":
		return "VERIFY_CA"
	case ssl || values["ssl-cert"] != "":
		return "REQUIRED"
	}
	return "DISABLED"
}

// encrypt obeys the settings of a my.cnf for encryption, as the clients do, and refuses those that it
// doesn't know.
func encrypt(config *mysql.Config, values map[string]string, path string) error {
	known := []string{"ssl", "skip-ssl", "ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "ssl-verify-server-cert"}
	for name := range values {
		plain := strings.TrimPrefix(strings.TrimPrefix(name, "loose-"), "skip-")
		if (strings.HasPrefix(plain, "ssl") || strings.HasPrefix(plain, "tls")) && !slices.Contains(known, name) {
			return failed(usage, "%s has %s, which this command doesn't obey: give the server by a data source name with tls=", path, name)
		}
	}
	host, _, _ := net.SplitHostPort(config.Addr)
	secure := &tls.Config{ServerName: cmp.Or(host, "localhost"), MinVersion: tls.VersionTLS12}
	if ca := values["ssl-ca"]; ca != "" {
		text, err := os.ReadFile(ca)
		if secure.RootCAs = x509.NewCertPool(); err != nil || !secure.RootCAs.AppendCertsFromPEM(text) {
			return failed(usage, "the ssl-ca %s of %s has no certificates that can be read", ca, path)
		}
	}
	if values["ssl-cert"] != "" || values["ssl-key"] != "" {
		own, err := tls.LoadX509KeyPair(values["ssl-cert"], values["ssl-key"])
		if err != nil {
			return failed(usage, "ssl-cert and ssl-key of %s: %w", path, err)
		}
		secure.Certificates = []tls.Certificate{own}
	}
	switch mode := sslMode(values); mode {
	case "DISABLED":
		return nil
	case "PREFERRED":
		secure.InsecureSkipVerify, config.AllowFallbackToPlaintext = true, true //nolint:gosec // as the mode says
	case "REQUIRED":
		secure.InsecureSkipVerify = true //nolint:gosec // as the mode says
	case "VERIFY_CA":
		secure.InsecureSkipVerify = true //nolint:gosec // verified below, but for the name
		secure.VerifyConnection = func(is tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, certificate := range is.PeerCertificates[1:] {
				between.AddCert(certificate)
			}
			_, err := is.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: secure.RootCAs, Intermediates: between})
			return err
		}
	case "VERIFY_IDENTITY":
	default:
		return failed(usage, "%s has ssl-mode=%s, which is none that this command knows", path, mode)
	}
	config.TLS = secure
	return nil
}

// wordlist reads the keys of --keys.
func (a *app) wordlist() ([]string, error) {
	if a.keys == "" {
		return nil, nil
	}
	var in io.Reader = a.lines()
	if a.keys != "-" {
		file, err := os.Open(a.keys)
		if err != nil {
			return nil, failed(usage, "read the keys: %w", err)
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	}
	var keys []string
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if key := strings.TrimSpace(lines.Text()); key != "" {
			keys = append(keys, key)
		}
	}
	return keys, lines.Err()
}
