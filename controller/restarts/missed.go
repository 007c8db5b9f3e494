package restarts

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/internal/run"
)

// missedEvery is the interval of searches for pods without a sidecar. It polls, because a cluster may have too many
// such pods for a watch.
const missedEvery = 5 * time.Minute

// countMissed counts the liveness probes of pods that the webhook missed, until ctx ends.
func (l *leader) countMissed(ctx context.Context) {
	defer l.missed.Store(0)
	for range run.Every(ctx, missedEvery) {
		if n, err := l.findMissed(ctx); err == nil {
			l.missed.Store(n)
		} else if ctx.Err() == nil {
			l.o.Logger.WarnContext(ctx, "failed to list pods without a sidecar, sonde_liveness_unguarded lacks them", "err", err)
		}
	}
}

// findMissed counts probes of pods without a mesh, in namespaces where the webhook injects or where pods should be
// guarded.
func (l *leader) findMissed(ctx context.Context) (n int64, err error) {
	for namespace, guarded := range l.o.Namespaces() {
		options := metav1.ListOptions{LabelSelector: "!" + mesh.LabelMesh, Limit: listPage}
		for {
			page, err := l.o.Pods.Pods(namespace).List(ctx, options)
			if err != nil {
				return 0, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
			}
			for i := range page.Items {
				n += missedProbes(&page.Items[i], guarded)
			}
			if options.Continue = page.Continue; options.Continue == "" {
				break
			}
		}
	}
	return n, nil
}

// missedProbes returns how many liveness probes of a pod should be guarded, but are not, since it has no sidecar.
// guarded is the setting of its namespace.
func missedProbes(p *corev1.Pod, guarded bool) (n int64) {
	if podspec.Ended(p) || podspec.Unsupported(&p.Spec) != "" || podspec.IsInjected(&p.Spec) || !asksForGuard(p, guarded) {
		return 0
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].LivenessProbe != nil {
				n++
			}
		}
	}
	return n
}

// asksForGuard reports whether a pod should be guarded. A value that the webhook rejects counts as no.
func asksForGuard(p *corev1.Pod, guarded bool) bool {
	for _, all := range []map[string]string{p.Labels, p.Annotations} {
		for _, key := range []string{mesh.LabelOwnInjection, mesh.LabelInjection} {
			if on, err := mesh.ParseSwitch(all[key]); err == nil && !on {
				return false
			}
		}
	}
	if value, is := p.Annotations[mesh.AnnotationGuardedLiveness]; is {
		on, err := mesh.ParseSwitch(value)
		return err == nil && on
	}
	if value, is := p.Annotations[mesh.AnnotationEnhancedLiveness]; is {
		return value == "true"
	}
	return guarded
}
