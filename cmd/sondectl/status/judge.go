package status

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

// judges find problems, each in one area.
var judges = []func(*picture) []Problem{
	controlPlane, notAsked, lostMeshes, stored, authorities, services, agents, envoys, certificates, inbounds, outbounds,
	probes, unfailing, unchecked, drains, restarts,
}

// Judge draws conclusions from the facts, without side effects and requests.
func Judge(f *Facts) *Report {
	v := newPicture(f)
	var all []Problem
	for _, judge := range judges {
		all = append(all, judge(v)...)
	}
	return newReport(v, group(all))
}

// picture indexes the facts by object.
type picture struct {
	*Facts
	proxies    map[mesh.ID]*adminv1.Proxy
	dataplanes map[mesh.ID]*Dataplane
	// callers maps services to the Dataplanes with an outbound to them, sorted.
	callers map[mesh.ID][]string
	// meshes are the meshes with their objects.
	meshes []meshOf
}

// meshOf is a mesh with its decoded object.
type meshOf struct {
	*adminv1.Mesh
	spec *mesh.Mesh
}

func newPicture(f *Facts) *picture {
	v := &picture{
		Facts: f, proxies: map[mesh.ID]*adminv1.Proxy{}, dataplanes: map[mesh.ID]*Dataplane{},
		callers: map[mesh.ID][]string{},
	}
	for _, p := range f.Proxies {
		v.proxies[mesh.MakeID(p.GetMesh(), p.GetName())] = p
	}
	for i, m := range f.Meshes {
		v.meshes = append(v.meshes, meshOf{m, f.Specs[i]})
	}
	for _, d := range f.Dataplanes {
		v.dataplanes[d.Spec.ID()] = d
		called := map[mesh.ID]bool{}
		for i := range d.Spec.Spec.Networking.Outbound {
			called[mesh.MakeID(d.Spec.Mesh, d.Spec.Spec.Networking.Outbound[i].Service())] = true
		}
		for id := range called {
			v.callers[id] = append(v.callers[id], d.Spec.Name)
		}
	}
	for _, names := range v.callers {
		slices.Sort(names)
	}
	if f.Namespace != "" {
		v.narrow(f.Namespace)
	}
	return v
}

// narrow restricts the picture to a namespace of Kubernetes, whose Dataplanes are NAME.NAMESPACE and services
// NAME_NAMESPACE_svc_PORT.
func (v *picture) narrow(namespace string) {
	of := *v.Facts
	other := func(dataplane string) bool { return !strings.HasSuffix(dataplane, "."+namespace) }
	of.Dataplanes = slices.DeleteFunc(slices.Clone(of.Dataplanes), func(d *Dataplane) bool { return other(d.Spec.Name) })
	of.Proxies = slices.DeleteFunc(slices.Clone(of.Proxies), func(p *adminv1.Proxy) bool { return other(p.GetName()) })
	of.Services = slices.DeleteFunc(slices.Clone(of.Services), func(s *adminv1.Service) bool {
		return !strings.Contains(s.GetName(), "_"+namespace+"_svc")
	})
	v.Facts = &of
}

// ask returns the command that explains an object.
func (v *picture) ask(kind, meshName, name string) string {
	command := "sondectl why " + kind + "/" + name
	if len(v.Meshes) > 1 {
		command += " --mesh " + meshName
	}
	return command
}

// askDataplane is ask for a Dataplane, or for its pod.
func (v *picture) askDataplane(meshName, name string) string {
	if d := v.dataplanes[mesh.MakeID(meshName, name)]; d != nil && d.GetPod() {
		if do := AskPod(name); do != "" {
			return do
		}
	}
	return v.ask("dataplane", meshName, name)
}

// AskPod is the command that explains the pod of a Dataplane, "" if the name cannot be a pod's.
func AskPod(name string) string {
	namespace, pod, ok := mesh.ObjectOf(name)
	if !ok {
		return ""
	}
	return fmt.Sprintf("sondectl why pod/%s -n %s", pod, namespace)
}

// ofDataplane returns a problem of one Dataplane for the caller to complete.
func (v *picture) ofDataplane(meshName, name string, s Severity, what string, notes ...string) Problem {
	return Problem{
		tier: ofObjects, Severity: s, Mesh: meshName, Objects: []string{"dataplane/" + name}, What: what, Notes: slices.DeleteFunc(notes, func(n string) bool { return n == "" }),
		Do: v.askDataplane(meshName, name), proxies: []string{mesh.MakeID(meshName, name)},
	}
}

// controlPlane reports failing checks of the replica that answers, and disconnected replicas.
func controlPlane(v *picture) []Problem {
	var all []Problem
	for _, c := range v.Health {
		severity, says := Critical, "fails"
		switch {
		case c.GetStatus() == adminv1.HealthCheck_WARNING:
			severity, says = Warning, "warns"
		case c.GetStatus() != adminv1.HealthCheck_FAILED:
			continue
		}
		if c.GetName() == "meshes" && strings.Count(c.GetReason(), "\n")+1 == len(v.lost()) {
			continue // lostMeshes reports this check
		}
		p := Problem{
			Severity: severity, Objects: []string{"check/" + c.GetGroup() + "/" + c.GetName()},
			What:  "a health check of the control plane " + says,
			Notes: []string{c.GetReason()}, Do: "sondectl health (see docs/guides/health.md)",
		}
		if changes := c.GetChanges(); len(changes) > 0 {
			p.Since = at(changes[len(changes)-1].GetAt())
		}
		all = append(all, p)
	}
	for _, name := range v.Missing {
		all = append(all, Problem{
			Severity: Error, Objects: []string{"replica/" + name}, What: "is disconnected from the replica that answers",
			Notes: []string{"recent reports of its agents and Envoys, including hanging agents, are missing here"}, Do: "sondectl health",
		})
	}
	return all
}

// notAsked reports gaps in this answer.
func notAsked(v *picture) []Problem {
	var all []Problem
	if v.Unready != nil {
		all = append(all, Problem{
			Severity: Critical, What: "the control plane is not ready: the state of the meshes is unknown", Notes: []string{status.Convert(v.Unready).Message()}, Do: "sondectl health",
		})
	}
	for _, missed := range v.NotAsked {
		all = append(all, Problem{Severity: Warning, What: "could not be read", Notes: []string{missed}, Do: "see docs/kubernetes.md for the rights that sondectl needs"})
	}
	for _, plural := range slices.Sorted(maps.Keys(v.LeftOut)) {
		what := fmt.Sprintf("%d %s are not included: an answer has at most 5000", v.LeftOut[plural], plural)
		if plural == probesPlural {
			what = describe.ProbesLeftOutText(v.LeftOut[plural])
		}
		all = append(all, Problem{
			Severity: Warning, tier: ofMesh, What: what, Do: "sondectl status --mesh MESH for each mesh",
		})
	}
	return all
}

// lost returns the meshes whose Mesh object is missing.
func (v *picture) lost() []meshOf {
	return slices.DeleteFunc(slices.Clone(v.meshes), func(m meshOf) bool { return !m.GetRecorded() })
}

// lostMeshes reports meshes whose Mesh object is missing.
func lostMeshes(v *picture) []Problem {
	var all []Problem
	for _, m := range v.lost() {
		p := Problem{
			tier: ofMesh, Severity: Critical, Mesh: m.spec.Name, Objects: []string{"mesh/" + m.spec.Name},
			What: "its Mesh object is missing, its last mode is kept", Notes: []string{m.spec.LostError().Error()},
			Do: "create the Mesh again, unchanged or with the mode that you want",
		}
		for _, stored := range v.Problems {
			if stored.GetObject() == p.Objects[0] {
				p.Since = at(stored.GetSince())
			}
		}
		all = append(all, p)
	}
	return all
}

// stored reports problems of the objects in the store.
func stored(v *picture) []Problem {
	told := map[string]bool{}
	for _, m := range v.lost() {
		told["mesh/"+m.spec.Name] = true
	}
	unknown := map[mesh.ID]bool{} // by mesh and object: services warns of them, too
	for _, s := range v.Services {
		unknown[mesh.MakeID(s.GetMesh(), "service/"+s.GetName())] = len(s.GetEndpoints()) == 0
	}
	var all []Problem
	for _, p := range v.Problems {
		if told[p.GetObject()] || p.GetWarning() && unknown[mesh.MakeID(p.GetMesh(), p.GetObject())] {
			continue
		}
		entry := Problem{
			tier: ofMesh, Severity: Error, Mesh: p.GetMesh(), What: "rejected: the last valid content remains in use", Since: at(p.GetSince()), Notes: []string{describe.Place(p) + p.GetText()},
			Do: "sondectl validate -f " + p.GetFile(),
		}
		switch {
		case p.GetObject() != "":
			entry.Objects = []string{p.GetObject()}
		case p.GetFile() != "":
			entry.Objects = []string{"file/" + path.Base(p.GetFile())}
		}
		if p.GetWarning() {
			entry.Severity, entry.What = Warning, "warnings of the store"
		}
		if v.Restarts != nil && p.GetFile() != "" { // on Kubernetes the file is resource/namespace/name
			entry.Do = "kubectl get " + strings.Replace(p.GetFile(), "/", ".sonde.dev/", 1) + " -o yaml"
			if parts := strings.Split(p.GetFile(), "/"); len(parts) == 3 {
				entry.Do = fmt.Sprintf("kubectl get %s.sonde.dev %s -n %s -o yaml", parts[0], parts[2], parts[1])
			}
		}
		all = append(all, entry)
	}
	return all
}

// few joins the first names and the number of others.
func few(names []string) string {
	return strings.Join(names[:min(len(names), 3)], ", ") + more(len(names)-3)
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}
