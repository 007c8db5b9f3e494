package controlplane

import (
	"strings"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// podRestarts tells agents of pods which restarts are granted.
type podRestarts struct{ restarts *restarts.Restarts }

// Of implements session.Restarts.
func (p podRestarts) Of(id mesh.ID) *agentv1.Restarts {
	pod, is := podOf(id)
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

// podOf returns the pod of a proxy, false if its name is not <pod>.<namespace>.
func podOf(id mesh.ID) (watch.Key, bool) {
	_, name := mesh.SplitID(id)
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return watch.Key{}, false
	}
	return watch.Key{Namespace: name[i+1:], Name: name[:i]}, true
}

// liveness returns what agents say, by pod.
func (c *cluster) liveness() map[watch.Key]restarts.Liveness {
	all := map[watch.Key]restarts.Liveness{}
	for id, said := range c.cp.agents.PodLiveness() {
		pod, is := podOf(id)
		if !is {
			continue
		}
		l := restarts.Liveness{Passing: said.Passing, Unused: said.Unused}
		for _, f := range said.Failing {
			l.Failing = append(l.Failing, restarts.Failing{Container: f.Container, Since: f.Since})
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
