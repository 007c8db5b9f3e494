package controlplane

import (
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// podRestarts tells agents of pods which restarts are granted.
type podRestarts struct{ restarts *restarts.Restarts }

// Of implements session.Restarts.
func (p podRestarts) Of(id mesh.ID) *agentv1.Restarts {
	_, name := mesh.SplitID(id)
	pod, is := podOf(name)
	if !is {
		return nil
	}
	m := &agentv1.Restarts{}
	for _, g := range p.restarts.Of(pod) {
		m.Grants = append(m.Grants, &agentv1.RestartGrant{Name: g.Name, Container: g.Container, Epoch: g.Epoch})
	}
	return m
}

// Held implements session.Restarts.
func (p podRestarts) Held(mesh.ID) { p.restarts.Wake() }

// liveness returns what agents say, by pod.
func (c *cluster) liveness() map[watch.Key]restarts.Liveness {
	all := map[watch.Key]restarts.Liveness{}
	for id, said := range c.cp.agents.PodLiveness() {
		_, name := mesh.SplitID(id)
		pod, is := podOf(name)
		if !is {
			continue
		}
		l := restarts.Liveness{Passing: said.Passing, Unused: said.Unused}
		for _, f := range said.Failing {
			if f.Grant == "" { // with one it does not ask for another
				l.Asking = append(l.Asking, restarts.Asking{Container: f.Container, Since: f.Since})
			}
		}
		all[pod] = l
	}
	return all
}

// tellRestarts has the agent of a pod be told what is granted, if its session is here.
func (c *cluster) tellRestarts(pod watch.Key) {
	if p := c.controller.Cluster.PodNamed(pod); p != nil {
		c.cp.agents.WakeRestarts(mesh.MakeID(p.Mesh, pod.Name+"."+pod.Namespace))
	}
}
