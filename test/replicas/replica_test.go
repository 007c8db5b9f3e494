package replicas

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/test/virtualplane"
)

// connectionAge is short, so that streams move in most schedules.
const connectionAge = 2 * time.Minute

// replica is one process of the control plane. The schedule plays Kubernetes.
type replica struct {
	*virtualplane.Replica
	name, host string
	sim        *simulation
	api        *virtualplane.Client
	leads      atomic.Bool
	freeze     *freeze.Freeze // nil if nothing judges whether the mesh is seen
	stop       context.CancelFunc
}

// startReplica starts a replica, which reads all current objects.
func startReplica(ctx context.Context, s *simulation, name, host string) (*replica, error) {
	r := &replica{name: name, host: host, sim: s, api: s.etcd.Client(s.lag)}
	ctx, r.stop = context.WithCancel(ctx)
	var err error
	r.Replica, err = virtualplane.NewReplica(ctx, virtualplane.ReplicaOptions{
		Name: name, Host: host, Network: s.network, Secrets: r.api, Tokens: tokens{}, Logger: r.log(), ConnectionAge: connectionAge, Late: r.api.Late,
		Agents: func(v *virtualplane.Replica, o *agents.Options) {
			o.Leads, o.ServingCA, o.Frozen = r.leads.Load, v.Serving, r.judge(v)
		},
	})
	if err != nil {
		r.stop()
		return nil, err
	}
	s.read(r)
	r.Peers.Follow(s.addresses())
	if err := r.Start(ctx, r.Serving.Run); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

// end ends the process. A killed process sends nothing more.
func (r *replica) end(killed bool) {
	if killed {
		r.sim.network.Reset(r.host)
	}
	r.stop()
	if err := r.Wait(); err != nil {
		r.sim.Wrong("%s ended: %v", r.name, err)
	}
	r.sim.network.Reset(r.host)
}

// log returns a logger that writes into the journal. A refused certificate is a violation in any schedule, unless it
// has expired while its agent was disconnected.
func (r *replica) log() *slog.Logger {
	return virtualplane.Log(func(line string) {
		if strings.Contains(line, "rejected client certificate") && !strings.Contains(line, "has expired") {
			r.sim.Wrong("%s: %s", r.name, line)
		}
		r.sim.Detail("%s: %s", r.name, line)
	})
}

// tokens are the names of proxies.
type tokens struct{}

// Authenticate implements join.Authenticator.
func (tokens) Authenticate(_ context.Context, token string) (identity.Subject, error) {
	return identity.Subject{Mesh: mesh.DefaultMesh, Dataplane: token, Path: mesh.WorkloadPath(workload)}, nil
}

// addresses returns the addresses of the existing replicas, by name.
func (s *simulation) addresses() map[string]string {
	all := map[string]string{}
	for name, r := range s.replicas {
		all[name] = r.host + virtualplane.PeersPort
	}
	return all
}

// follow gives all replicas the current list of replicas.
func (s *simulation) follow() {
	all := s.addresses()
	for _, r := range s.replicas {
		r.Later(func() { r.Peers.Follow(maps.Clone(all)) })
	}
}
