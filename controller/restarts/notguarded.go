package restarts

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// lookTimeout bounds the request that looks up a pod.
const lookTimeout = 5 * time.Second

// notGuarded asks the API server why a pod is not guarded, or whether it exists, since no watch has pods without a
// sidecar. The namespace may be "". names are the names of guarded pods, for suggestions.
func (r *Restarts) notGuarded(ctx context.Context, namespace, name string, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := r.o.Watching.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(),
	})
	if err != nil {
		return status.Errorf(codes.Unavailable, "read pod %q: %v", name, err)
	}
	where := "in any namespace"
	if namespace != "" {
		where = fmt.Sprintf("in namespace %.100q", namespace)
	}
	if len(found.Items) == 0 {
		return status.Errorf(codes.NotFound, "pod %.100q not found %s%s", name, where, mesh.DidYouMean(name, names))
	}
	var all []string
	for i := range found.Items {
		p := &found.Items[i]
		all = append(all, fmt.Sprintf("pod %s/%s is not guarded: %s", p.Namespace, p.Name, whyUnguarded(p)))
	}
	return status.Error(codes.FailedPrecondition, strings.Join(all, "; "))
}

func whyUnguarded(p *corev1.Pod) string {
	guarded := p.Annotations[mesh.AnnotationGuardedLiveness]
	containers, _ := guardedContainers(probeTable(&p.Spec, false))
	switch {
	case podspec.Ended(p):
		return "it has ended"
	case p.Labels[mesh.LabelMesh] == "" || podspec.Container(&p.Spec, mesh.ContainerSidecar) == nil:
		return "it has no sidecar"
	case len(containers) > 0:
		return "this replica of the control plane has not read the pod yet"
	case guarded == "":
		return "it has no annotation " + mesh.AnnotationGuardedLiveness +
			": the annotation of its namespace affects only pods created after it"
	case guarded != "enabled":
		return fmt.Sprintf("its annotation %s is %.40q", mesh.AnnotationGuardedLiveness, guarded)
	}
	return "none of its containers has a liveness probe that can be guarded: sondectl probes explain says why"
}
