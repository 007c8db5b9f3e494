package mesh

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// replica is a replica of the service: an application for each protocol, and a proxy once the replica has joined.
type replica struct {
	proxy    *harness.Proxy
	inbounds []inbound
	// declared: the Dataplane is in the store. joined: the endpoints are the inbounds instead of the applications.
	declared, joined bool
}

// joining is a service with several protocols, whose replicas join the mesh one by one.
type joining struct {
	machine  *harness.Machine
	replicas []*replica
}

var joiningProtocols = []string{"http", "http2", "grpc", "tcp"}

func newJoining(t *testing.T, m *harness.Machine, replicas int) *joining {
	t.Helper()
	j := &joining{machine: m}
	for n := range replicas {
		r := &replica{}
		name := fmt.Sprintf("b-%d", n)
		for _, protocol := range joiningProtocols {
			i := inbound{service: protocol, protocol: protocol, at: must.FreeAddress(t, m), app: must.FreeAddress(t, m)}
			_, err := m.StartApp(t.Context(), name+"-"+protocol, protocol, i.app)
			must.Do(t, err)
			r.inbounds = append(r.inbounds, i)
		}
		var err error
		r.proxy, err = m.Prepare(harness.ProxyOptions{Name: name, Labels: map[string]string{"kuma.io/workload": "b"}})
		must.Do(t, err)
		j.replicas = append(j.replicas, r)
	}
	return j
}

// put writes everything into one file, to replace the endpoints in one step.
func (j *joining) put(t *testing.T) {
	t.Helper()
	var documents []string
	for _, r := range j.replicas {
		if r.declared {
			documents = append(documents, edited(t, r.proxy, func(networking object) {
				var inbounds []object
				for _, i := range r.inbounds {
					o := i.object(t)
					o["health"] = object{"ready": r.joined}
					inbounds = append(inbounds, o)
				}
				networking["inbound"] = inbounds
			}))
		}
	}
	for n, protocol := range joiningProtocols {
		var plain []plainEndpoint
		for _, r := range j.replicas {
			if !r.joined {
				plain = append(plain, plainEndpoint{at: r.inbounds[n].app})
			}
		}
		documents = append(documents, serviceYAML(t, protocol, protocol, plain...))
	}
	must.Do(t, j.machine.Put("service.yaml", strings.Join(documents, "---\n")))
}

// want returns the endpoints of one protocol.
func (j *joining) want(protocol int) []string {
	var all []string
	for _, r := range j.replicas {
		if i := r.inbounds[protocol]; r.joined {
			all = append(all, i.at)
		} else {
			all = append(all, i.app)
		}
	}
	return all
}

// callers returns callers of each protocol, over one connection and over new connections.
func callers(a *harness.Proxy) []harness.Caller {
	var all []harness.Caller
	for _, keep := range []bool{false, true} {
		all = append(all,
			harness.NewHTTPCaller("http://"+a.Outbounds["http"]+"/", keep, false),
			harness.NewHTTPCaller("http://"+a.Outbounds["http2"]+"/", keep, true),
			harness.NewGRPCCaller(a.Outbounds["grpc"], keep),
			harness.NewTCPCaller(a.Outbounds["tcp"], keep),
		)
	}
	return all
}

func TestServiceJoinsReplicaByReplica(t *testing.T) {
	for name, tc := range map[string]struct {
		mode     string
		replicas int
	}{
		"three replicas, STRICT":  {strict, 3},
		"one replica, PERMISSIVE": {permissive, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, tc.mode)
			j := newJoining(t, m, tc.replicas)
			j.put(t)
			a := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: joiningProtocols})[0]
			load := harness.StartLoad(t.Context(), 2*time.Millisecond, callers(a)...)
			defer load.Stop()
			must.Make(t, load, 100)
			for _, r := range j.replicas {
				// The sidecar starts beside the application, which clients call directly until the sidecar is
				// ready.
				r.declared = true
				j.put(t)
				must.Do(t, r.proxy.StartAgent(t.Context()))
				must.Do(t, r.proxy.WaitReady(t.Context()))
				must.Make(t, load, 100)
				r.joined = true
				j.put(t)
				for n, protocol := range joiningProtocols {
					must.HaveEndpoints(t, a, protocol, j.want(n)...)
				}
				must.Make(t, load, 200)
			}
			t.Log(must.Hold(t, load))
			for _, protocol := range joiningProtocols {
				if n := stat(t, a, "cluster."+protocol+".ssl.handshake"); n == 0 {
					t.Errorf("%s is not called over mTLS", protocol)
				}
			}
		})
	}
}
