package session

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// The errors of sessions on which locks don't hold. Package schema hands them on by the
// same names, and says what each of them means.
var (
	ErrEngine     = errors.New("schema: unknown engine: the server speaks the protocol of MySQL but doesn't behave as MySQL or MariaDB does; on such engines locks lose updates and a lease has several holders at once; connect to MySQL or MariaDB itself")
	ErrSession    = errors.New("schema: locks don't hold on this session")
	ErrAutocommit = fmt.Errorf("%w: it has autocommit = 0: remove that from the data source name and from init_connect, and don't SET it; BeginTx and BEGIN begin transactions", ErrSession)
	ErrProxy      = errors.New("schema: a proxy that locks don't hold through, see docs/proxies.md")
	ErrVariable   = fmt.Errorf("%w: the server doesn't know a variable, probably one that the data source name sets: remove it there; MariaDB before 11.1 has tx_isolation, and no transaction_isolation", ErrSession)
	ErrComments   = fmt.Errorf("%w: it removes comments from statements, and with them the limits of waits: switch that off", ErrProxy)
	ErrCharset    = fmt.Errorf("%w: its character_set_client, character_set_connection and character_set_results don't belong together: remove them, and collation_connection, from the data source name and from init_connect, and don't SET them; charset=utf8mb4 sets all", ErrSession)
)

// Lacks returns the error of what an engine can't do, by its sentence in rawsql.Lacks, or nil where
// there is none. It matches ErrEngine.
func Lacks(e rawsql.Engine, sentence string) error {
	if sentence == "" {
		return nil
	}
	return lacks("schema: on " + e.Name + " lockstep has " + e.Lacks.Has + ": " + sentence)
}

// Sharded returns the error of a statement that vtgate has refused, since its rows or its keyspace are
// on several shards, or nil.
func Sharded(err error) error {
	var server *mysql.MySQLError
	if errors.As(err, &server) && (server.Number == 1105 && strings.Contains(server.Message, "not have exactly one shard") ||
		server.Number == 1317 && strings.Contains(server.Message, "multi-db transaction attempted")) {
		return Lacks(rawsql.Vitess, rawsql.Vitess.Lacks.Shards)
	}
	return nil
}

type lacks string

func (e lacks) Error() string { return string(e) }

func (lacks) Unwrap() error { return ErrEngine }

// rule says which values of a setting are right.
type rule struct {
	setting string
	right   string // the values that are right
	list    bool   // it is a list of such values
	wrong   error  // the error of another value, or nil for one that has the fix
	none    error  // the error of no value, where that has another cause
	fix     string
	guarded bool // only transactions of the program rely on it
}

// standsStill is the fix of a fixed timestamp.
const standsStill = "NOW() stands still, by which leases expire: remove it from the data source name and from init_connect, and don't SET it"

// rules has a rule for each setting in rawsql.Settings. A value that isn't right here is
// refused, one that no server is known to have among them.
var rules = []rule{
	{setting: "sees_own_id", right: "1", wrong: ErrEngine},
	{setting: "autocommit", right: "1", wrong: ErrAutocommit},
	{setting: "one_charset", right: "1", wrong: ErrCharset},
	{setting: "completion_type", right: "NO_CHAIN", fix: "with another, COMMIT and ROLLBACK begin a transaction that stays open, or close the connection: " +
		"remove it from the data source name and from init_connect, and don't SET it"},
	{setting: "timestamp", right: "DEFAULT", fix: standsStill},
	{setting: "isolation", none: ErrComments, right: "REPEATABLE-READ READ-COMMITTED READ-UNCOMMITTED SERIALIZABLE", fix: "this version of lockstep doesn't know that level: set one that it knows"},
	{setting: "sql_mode", list: true, right: "STRICT_TRANS_TABLES REAL_AS_FLOAT PIPES_AS_CONCAT ANSI_QUOTES IGNORE_SPACE IGNORE_BAD_TABLE_OPTIONS ONLY_FULL_GROUP_BY" +
		" NO_UNSIGNED_SUBTRACTION NO_DIR_IN_CREATE POSTGRESQL ORACLE MSSQL DB2 MAXDB NO_KEY_OPTIONS NO_TABLE_OPTIONS NO_FIELD_OPTIONS" +
		" MYSQL323 MYSQL40 ANSI NO_AUTO_VALUE_ON_ZERO NO_BACKSLASH_ESCAPES STRICT_ALL_TABLES NO_ZERO_IN_DATE" +
		" NO_ZERO_DATE ALLOW_INVALID_DATES ERROR_FOR_DIVISION_BY_ZERO TRADITIONAL NO_AUTO_CREATE_USER HIGH_NOT_PRECEDENCE" +
		" NO_ENGINE_SUBSTITUTION PAD_CHAR_TO_FULL_LENGTH EMPTY_STRING_IS_NULL SIMULTANEOUS_ASSIGNMENT TIME_ROUND_FRACTIONAL TIME_TRUNCATE_FRACTIONAL",
		fix: "this version of lockstep doesn't know that mode: take it out"},
}

// Facts are what a session says about its server and itself.
type Facts struct {
	Version           string // it may have blanks: "11.8.9-MariaDB-0+deb13u1 from Debian"
	ID                uint64 // CONNECTION_ID()
	RollbackOnTimeout bool   // a lock wait timeout rolls back the whole transaction
	Name              string // identifies the database: host name, port and database name
	ClockUs           int64  // the server's clock
	Isolation         sql.IsolationLevel
	Oracle            bool  // sql_mode=ORACLE of MariaDB, which reads compound statements otherwise
	Unfit             error // why no lock would hold on the session, or nil

	settings []string
}

// Columns is how many columns the reply to rawsql.Facts has.
const Columns = 6

// Read makes Facts of the reply to rawsql.Facts. If that can't be read, because of
// character_set_results, Unfit says so.
func Read(row [Columns]string) (f Facts, err error) {
	settings := strings.Fields(row[5])
	if len(settings) == 0 || settings[0] != rawsql.SettingsBegin {
		return Facts{Unfit: ErrCharset}, nil
	}
	f = Facts{Version: row[0], RollbackOnTimeout: row[2] == "1", Name: row[3]}
	if row[0] == "" || row[0][0] < '0' || row[0][0] > '9' || row[2] != "0" && row[2] != "1" {
		return f, fmt.Errorf("the server reports %q, which is not a version with settings", row)
	}
	if f.ID, err = strconv.ParseUint(row[1], 10, 64); err != nil {
		return f, err
	}
	if f.ClockUs, err = strconv.ParseInt(row[4], 10, 64); err != nil {
		return f, err
	}
	f.settings = settings[1:]
	if f.Isolation, f.Unfit = judge(rules, f.settings); f.Question() != "" {
		e := rawsql.EngineOf(f.Version)
		f.Unfit = Lacks(e, e.Lacks.Pools)
	}
	f.Oracle = strings.Contains(row[5], "ORACLE")
	return f, nil
}

// Question returns what else the session must be asked, or "".
func (f Facts) Question() string {
	if !errors.Is(f.Unfit, ErrEngine) {
		return ""
	}
	return strings.Replace(rawsql.EngineOf(f.Version).Settings, rawsql.Nonce, rand.Text(), 1)
}

// Answered returns the facts with the reply to the Question. A guarded connection has transactions
// of the program.
func (f Facts) Answered(reply string, guarded bool) Facts {
	settings := strings.Fields(reply)
	if len(settings) > 0 && settings[0] == rawsql.SettingsBegin {
		of := slices.DeleteFunc(slices.Clone(rulesOf[rawsql.EngineOf(f.Version).Name]), func(r rule) bool { return r.guarded && !guarded })
		f.Isolation, f.Unfit = judge(of, slices.Concat(f.settings, settings[1:]))
	}
	return f
}

// judge returns what is wrong with the settings. A rule whose setting is missing is broken.
func judge(rules []rule, settings []string) (level sql.IsolationLevel, unfit error) {
	values := make(map[string]string, len(settings))
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		values[name] = value
	}
	var wrong []error
	for _, r := range rules {
		value, told := values[r.setting]
		if err := r.judge(value, told); err != nil {
			wrong = append(wrong, err)
		}
	}
	return LevelOf(values["isolation"]), errors.Join(wrong...)
}

// LevelOf returns the isolation level of a name in SQL, with blanks or, as in variables, with hyphens,
// or LevelDefault.
func LevelOf(name string) sql.IsolationLevel {
	name = strings.ReplaceAll(name, "-", " ")
	for l := sql.LevelReadUncommitted; l <= sql.LevelSerializable; l++ {
		if strings.EqualFold(name, l.String()) {
			return l
		}
	}
	return sql.LevelDefault
}

func (r rule) judge(value string, told bool) error {
	right, words := strings.Fields(r.right), []string{value}
	if r.list {
		words = strings.FieldsFunc(value, func(c rune) bool { return c == ',' })
	}
	wrong := slices.IndexFunc(words, func(word string) bool { return !slices.Contains(right, word) })
	switch {
	case told && wrong < 0:
		return nil
	case value == "" && r.none != nil:
		return r.none
	case r.wrong != nil:
		return r.wrong
	case told:
		value = words[wrong]
	}
	return fmt.Errorf("%w: it has %s = %q: %s", ErrSession, r.setting, value, r.fix)
}

// Fit returns what is wrong with a session by the words in gen's LookJob: ErrEngine,
// ErrAutocommit, ErrCharset, ErrSession, or nil. Other words are ErrSession, too.
func Fit(text string) error {
	switch {
	case text == "":
		return nil
	case strings.HasPrefix(text, rawsql.OtherEngine):
		return ErrEngine
	case strings.HasPrefix(text, rawsql.NoAutocommit):
		return ErrAutocommit
	case strings.HasPrefix(text, rawsql.OtherCharset):
		return ErrCharset
	case strings.HasPrefix(text, rawsql.DirtyReads):
		return fmt.Errorf("%w: it is at READ UNCOMMITTED, where what isn't committed is read as done: set READ COMMITTED", ErrSession)
	case strings.HasPrefix(text, rawsql.FixedClock):
		return fmt.Errorf("%w: it has a fixed timestamp: %s", ErrSession, standsStill)
	}
	return fmt.Errorf("%w: it reports %q, which this version of lockstep doesn't know", ErrSession, text)
}

// Elsewhere is the error of a session that has chosen another database than it had.
func Elsewhere(name, had string) error {
	return fmt.Errorf("%w: its database is %s, and it was opened with %s: don't USE another, name its tables by database.table, or open a pool for it", ErrSession, name, had)
}

// NotUnderstood adds ErrEngine to the error of a server that doesn't know what rawsql.Facts asks, and
// ErrSession to that of a session which answers nothing.
func NotUnderstood(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: its SELECTs show no row: unset sql_select_limit", ErrSession)
	}
	var server *mysql.MySQLError
	if errors.As(err, &server) {
		switch server.Number {
		case 1064, 1105, 1235, 1305: // ER_PARSE_ERROR, ER_UNKNOWN_ERROR, ER_NOT_SUPPORTED_YET, ER_SP_DOES_NOT_EXIST
			return fmt.Errorf("%w: %w", ErrEngine, err)
		case 1193:
			return fmt.Errorf("%w: %w", UnknownVariable(server), err)
		}
	}
	return err
}

// UnknownVariable returns ErrEngine for an ER_UNKNOWN_SYSTEM_VARIABLE about what rawsql.Facts asks, and
// else ErrVariable: nothing else of ours names one that not all engines have.
func UnknownVariable(err *mysql.MySQLError) error {
	for _, part := range strings.Split(rawsql.Facts, "@@")[1:] {
		name := part[:strings.IndexFunc(part, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) })]
		if !strings.HasSuffix(name, "_isolation") && strings.Contains(err.Message, "'"+name+"'") {
			return ErrEngine
		}
	}
	return ErrVariable
}

// Queryer is a pool, a connection or a transaction.
type Queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Ask asks a session. A session on which no lock would hold isn't an error.
func Ask(ctx context.Context, db Queryer) (Facts, error) {
	var row [Columns]string
	into := make([]any, Columns)
	for i := range row {
		into[i] = &row[i]
	}
	if err := db.QueryRowContext(ctx, rawsql.Facts).Scan(into...); err != nil {
		return Facts{}, NotUnderstood(err)
	}
	return Read(row)
}

// AskAll does what Ask does, and also asks the Question, for what may go on where locks hold on the
// sessions of guarded pools alone.
func AskAll(ctx context.Context, db Queryer) (Facts, error) {
	facts, err := Ask(ctx, db)
	if err != nil || facts.Question() == "" {
		return facts, err
	}
	var reply string
	if err := db.QueryRowContext(ctx, facts.Question()).Scan(&reply); err != nil {
		return Facts{}, err
	}
	return facts.Answered(reply, false), nil
}

// Reply is the reply to rawsql.Facts of a session on which locks hold, for what stands in
// for a server.
func Reply(version, name string) []driver.Value {
	settings := []string{rawsql.SettingsBegin}
	for _, r := range rules {
		first, _, _ := strings.Cut(r.right, " ")
		settings = append(settings, r.setting+"="+first)
	}
	return []driver.Value{version, "7", "0", name, strconv.FormatInt(time.Now().UnixMicro(), 10), strings.Join(settings, " ")}
}
