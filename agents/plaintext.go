package agents

import (
	"time"

	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Plaintext is that of observed.State.
func (s *Server) Plaintext(meshName string) (proxies map[mesh.ID]observed.ProxyPlaintext, past []observed.PastPlaintext, since time.Time) {
	return s.observed.PlaintextOf(meshName)
}
