package guard

import "database/sql/driver"

// Origin returns the connector that made the connection, for another one like it, and
// the name of the server's that it is connected to; see Server.Name. It is found by
// sql.Conn.Raw.
func (c *conn) Origin() (connector driver.Connector, server string) {
	return c.pool, c.server.Name
}
