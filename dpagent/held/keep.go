package held

import (
	"slices"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// isOpen reports whether the control plane's last message has a grant; a missing grant is over. The caller holds mu.
func (l *Liveness) isOpen(grant string) bool {
	return slices.ContainsFunc(l.told.GetGrants(), func(g *agentv1.RestartGrant) bool { return g.GetName() == grant })
}

// keepUsed stores that a grant is used up, before the kubelet gets the failure with which it restarts the container.
func (l *Liveness) keepUsed() {
	l.mu.Lock()
	used := l.used
	l.used = false
	l.mu.Unlock()
	if used {
		l.keep()
	}
}

// keep stores the control plane's message and marks the grants that are used up, since the next agent would otherwise
// use them for another restart.
func (l *Liveness) keep() {
	l.keeping.Lock()
	defer l.keeping.Unlock()
	l.mu.Lock()
	m := proto.CloneOf(l.told)
	for _, g := range m.GetGrants() {
		c := l.containers[g.GetContainer()]
		g.Used = c != nil && (c.spent == g.GetName() || c.grant == g.GetName() && c.told == toldToRestart)
	}
	l.mu.Unlock()
	l.o.Keep(m)
}

// takeUsed marks the grants that an earlier agent has used up. The caller holds mu.
func (l *Liveness) takeUsed(grants []*agentv1.RestartGrant) {
	for _, g := range grants {
		if g.GetUsed() {
			l.containerNamed(g.GetContainer()).spent = g.GetName()
		}
	}
}
