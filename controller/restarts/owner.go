package restarts

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// owner is the controller of a pod, or the pod itself.
type owner struct {
	apiVersion string
	uid        types.UID
}

func ownerOf(p *corev1.Pod) owner {
	if o := metav1.GetControllerOf(p); o != nil {
		return owner{intern(o.APIVersion), types.UID(intern(string(o.UID)))}
	}
	return owner{"v1", p.UID}
}

// deployment is the record of a Deployment.
type deployment struct {
	replicas int
	uid      types.UID
}

// aboutWorkload returns an event about the workload of a pod, without reason and note.
func (c *cluster) aboutWorkload(id restartbudget.WorkloadID, p *pod) events.Event {
	e := events.Event{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name, APIVersion: p.owner.apiVersion,
		UID: p.owner.uid}
	if id.Kind == "Deployment" {
		e.APIVersion, e.UID = "apps/v1", "" // the owner of the pod is a ReplicaSet
		if d := c.deployments.Get(watch.Key{Namespace: id.Namespace, Name: id.Name}); d != nil {
			e.UID = d.uid
		}
	}
	return e
}
