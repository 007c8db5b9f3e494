package dashboard

import (
	"cmp"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

// notAnswered is what the agent asks for a probe that it does not answer.
const notAnswered = "nothing: it does not answer this probe"

// Reasons for the unknown verdict of a probe that the pod has.
const (
	native      = "the kubelet asks the application itself, and Sonde does not see the result"
	notInReport = "its agent does not report it"
)

// setTexts sets what the probes of a pod ask, and adds its probes without a verdict. The pod's findings must have been
// added last.
func (w *Workload) setTexts(d *status.Dataplane, texts []*adminv1.ProbeText) {
	_, pod, _ := mesh.ObjectOf(d.Spec.Name)
	for kind, cell := range w.cells() {
		for _, t := range texts {
			if t.GetProbe() != kind || cell.missed[pod] || cell.has(pod, t.GetContainer()) {
				continue
			}
			f := Finding{Instance: pod, Container: t.GetContainer(), State: Unreported, Reason: notInReport,
				Do: status.AskPod(d.Spec.Name)}
			if t.GetAgent() == "" {
				f.Reason = native
			}
			cell.add(f)
		}
		for i := len(cell.Findings) - 1; i >= 0 && cell.Findings[i].Instance == pod; i-- {
			f := &cell.Findings[i]
			if t := textOf(texts, f.Container, kind); t != nil {
				f.Probe, f.Kubelet = shorten(t.GetWritten()), shorten(t.GetKubelet())
				f.Asks = cmp.Or(f.Asks, shorten(t.GetAgent()), notAnswered)
			}
		}
	}
}

// has reports whether a pod whose findings were added last has one about a container, or about the whole pod.
func (c *Cell) has(pod, container string) bool {
	for i := len(c.Findings) - 1; i >= 0 && c.Findings[i].Instance == pod; i-- {
		if of := c.Findings[i].Container; of == container || of == "" {
			return true
		}
	}
	return false
}

// textOf returns the texts about a probe, nil if they are unknown. A finding about the readiness of a pod has no
// container: it gets them if the pod has one readiness probe.
func textOf(texts []*adminv1.ProbeText, container, kind string) (found *adminv1.ProbeText) {
	for _, t := range texts {
		switch {
		case t.GetProbe() != kind:
		case t.GetContainer() == container:
			return t
		case container == "" && found != nil:
			return nil
		case container == "":
			found = t
		}
	}
	return found
}
