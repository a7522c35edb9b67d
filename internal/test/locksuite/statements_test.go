package locksuite_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// recorder names the statements of lockstep's that the connections of a pool have sent in their present transactions.
type recorder struct {
	mu       sync.Mutex
	sent     map[int64][]string // by connection
	atCommit func(connection int64, sent []string)
}

// record returns a recorder, and a mutator for the configuration of its pool.
func record(tb testing.TB) (*recorder, func(*mysql.Config)) {
	r := &recorder{sent: make(map[int64][]string)}
	dialled := testdb.Dialled(tb, func(conn *net.TCPConn) net.Conn { return &recorded{TCPConn: conn, r: r} })
	return r, func(c *mysql.Config) { dialled(c); c.InterpolateParams = true }
}

// of returns the names of what a connection has sent in its transaction, sorted.
func (r *recorder) of(connection int64) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := slices.Clone(r.sent[connection])
	slices.Sort(names)
	return slices.Compact(names)
}

// begin forgets what a connection has sent.
func (r *recorder) begin(connection int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sent, connection)
}

// begins are the texts of a transaction's first statement: BEGIN, alone or with another, and a procedure that begins.
var begins = regexp.MustCompile(`^(?:SET STATEMENT \w+=\w+(?:,\w+=\w+)* FOR )?(?:START TRANSACTION|BEGIN|CALL lockstep_\w+\('|SET TRANSACTION ISOLATION)`)

// send notes a text.
func (r *recorder) send(connection int64, text string) {
	if text == "COMMIT" && r.atCommit != nil {
		r.atCommit(connection, r.of(connection))
	}
	if begins.MatchString(text) {
		r.begin(connection)
	}
	if name := nameOf(text); name != "" {
		r.mu.Lock()
		r.sent[connection] = append(r.sent[connection], name)
		r.mu.Unlock()
	}
}

// recorded is a connection, which knows its number from the server's greeting.
type recorded struct {
	*net.TCPConn
	r  *recorder
	id int64
}

// Read reads the number of the connection: behind the version of the protocol, 10, and that of
// the server (MySQL internals, "Protocol::HandshakeV10").
func (c *recorded) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if at := bytes.IndexByte(b[min(n, 5):n], 0); c.id == 0 && at >= 0 && n >= 5+at+5 {
		c.id = int64(binary.LittleEndian.Uint32(b[5+at+1:]))
	}
	return n, err
}

// Write notes the text of a command: COM_QUERY or COM_STMT_PREPARE.
func (c *recorded) Write(b []byte) (int, error) {
	if len(b) > 5 && b[3] == 0 && (b[4] == 0x03 || b[4] == 0x16) {
		c.r.send(c.id, string(b[5:]))
	}
	return c.TCPConn.Write(b)
}

// shape is the text of a statement, with its arguments left out.
type shape struct {
	name string
	text *regexp.Regexp
}

var (
	named     = regexp.MustCompile(`(?:--|/\*) name: (\w+) `)
	procedure = regexp.MustCompile(`CALL (lockstep_\w+)\(`)
	shapes    = sync.OnceValues(readShapes)
)

// nameOf returns the name of a statement: that of its comment, of the procedure that it calls,
// or of the statement whose text it contains. Of one that names no table of lockstep's it is "".
func nameOf(text string) string {
	for _, name := range []*regexp.Regexp{named, procedure} {
		if match := name.FindStringSubmatch(text); match != nil {
			return match[1]
		}
	}
	if !strings.Contains(text, "lockstep_") || strings.Contains(text, "SAVEPOINT") {
		return ""
	}
	all, err := shapes()
	if err != nil {
		return err.Error()
	}
	for _, s := range all {
		if s.text.MatchString(text) {
			return s.name
		}
	}
	return "an unknown statement: " + text
}

// readShapes returns the texts of the generated code and of package rawsql.
func readShapes() ([]shape, error) {
	texts := make(map[string]string)
	files, err := filepath.Glob("../../../gen/*.sql.go")
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 {
				if literal, ok := spec.Values[0].(*ast.BasicLit); ok {
					text, _ := strconv.Unquote(literal.Value)
					_, texts[spec.Names[0].Name], _ = strings.Cut(text, "\n")
				}
			}
			return true
		})
	}
	for kind, table := range map[string]rawsql.Table{"": rawsql.Named, "Centers": rawsql.Centers} {
		texts["LockManyReturning"+kind] = table.LockManyReturning(2)
		texts["LockMany"+kind] = table.LockMany(2)
		texts["TouchMany"+kind] = table.TouchMany(2)
		texts["SnapshotMany"+kind] = table.SnapshotMany(2)
		texts["TokensMany"+kind] = table.TokensMany(2)
	}
	var all []shape
	for name, text := range texts {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(text)), `\?`, `(?:\?|\d+|X'[0-9a-fA-F]*'|(?:_binary)?'(?:[^'\\]|\\.)*')`)
		pattern = strings.ReplaceAll(pattern, " SKIP LOCKED", "(?: SKIP LOCKED| NOWAIT)?") // see rawsql.Refuse
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, shape{strings.TrimSuffix(name, "Centers"), compiled})
	}
	slices.SortFunc(all, func(a, b shape) int { return len(b.text.String()) - len(a.text.String()) }) // one contains another
	return all, nil
}
