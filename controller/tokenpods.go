package controller

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/tokenreview"
)

// TokenPods returns the pod cache for TokenReviews.
func (c *Controller) TokenPods() tokenreview.Pods { return tokenPods{c.Cluster} }

type tokenPods struct{ cluster *source.Source }

// Pod implements tokenreview.Pods. A pod is unknown until its namespace has been read.
func (p tokenPods) Pod(uid string) (tokenreview.Pod, bool) {
	key, record := p.cluster.Pod(types.UID(uid))
	if record == nil {
		return tokenreview.Pod{}, false
	}
	namespace := p.cluster.Namespace(key.Namespace)
	if namespace == nil {
		return tokenreview.Pod{}, false
	}
	return tokenreview.Pod{
		Namespace: key.Namespace, Name: key.Name, UID: uid, ServiceAccount: record.ServiceAccount, Mesh: record.Mesh,
		Refused: mesh.CheckMeshOf(key.Namespace, namespace.Annotations, record.Mesh),
	}, true
}
