package lockhttp_test

import (
	"bufio"
	"database/sql"
	"io"
	"strings"
)

type sqlTx = sql.Tx

// splitter tells of each event of a stream.
type splitter struct {
	io.Reader
	tell func(event string)
}

func (s *splitter) Read([]byte) (int, error) {
	lines := bufio.NewScanner(s.Reader)
	lines.Buffer(nil, 1<<20)
	var event strings.Builder
	for lines.Scan() {
		if lines.Text() == "" {
			s.tell(event.String())
			event.Reset()
			continue
		}
		event.WriteString(lines.Text() + "\n")
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, io.EOF
}
