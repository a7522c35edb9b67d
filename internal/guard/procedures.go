package guard

import "github.com/dca00107/lockstep/internal/session"

// This file is what a pool remembers of the procedures of package schema.

// procedures reports whether the locks on a server are taken by the procedures.
func (c *connector) procedures(s session.Server) bool {
	return s.Procedures && !c.noProcedures.Load()
}

// Procedures reports whether the locks of a transaction are taken by the procedures of
// package schema: on MySQL, until NoProcedures is called.
func (t *TxState) Procedures() bool {
	return t.pool.procedures(t.server)
}

// NoProcedures notes that the server doesn't have the procedures, or that this user may not
// call them. From now on the pool does without.
func (t *TxState) NoProcedures() { t.pool.noProcedures.Store(true) }

// Read notes that a procedure has taken the transaction's snapshot.
func (t *TxState) Read() { t.ran(statement{kind: kindPlain}, false) }
