package restarts

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// reconcile acts as the Deployment controller.
func (s *simulation) reconcile(ctx context.Context) {
	for _, w := range s.workloads {
		live, old, unhealthy, over := s.sort(w)
		for _, p := range over {
			s.endPod(p)
		}
		switch {
		case live < w.replicas, len(old)+len(unhealthy) > 0 && live == w.replicas:
			s.startPod(ctx, w)
		case len(unhealthy) > 0: // they are replaced first
			s.deletePod(unhealthy[0])
		case len(old) > 0 && s.available(w) >= w.replicas:
			s.deletePod(old[0])
		}
	}
}

// sort returns the number of pods that are not deleted, the pods with an older template, the unavailable ones among
// these, and deleted pods whose grace period is over.
func (s *simulation) sort(w *workload) (live int, old, unhealthy, over []*pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range w.pods {
		switch {
		case p.gone:
		case !p.deleted.IsZero():
			if time.Since(p.deleted) > 5*time.Second {
				over = append(over, p)
			}
		case p.template == w.template:
			live++
		case p.available:
			live++
			old = append(old, p)
		default:
			live++
			unhealthy = append(unhealthy, p)
		}
	}
	return live, old, unhealthy, over
}

// available returns the number of available pods.
func (s *simulation) available(w *workload) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range w.pods {
		if !p.gone && p.available {
			n++
		}
	}
	return n
}

// putDeployment writes the Deployment of a workload.
func (s *simulation) putDeployment(w *workload) {
	s.api.put("deployments", &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{Kind: "Deployment", APIVersion: "apps/v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: w.name},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(w.replicas))},
	})
}

// setBudget sets the budget of unavailable pods of a workload, by a PodDisruptionBudget; -1 removes it.
func (s *simulation) setBudget(w *workload, pods int) {
	s.Note("%s: the PodDisruptionBudget says %d", w.name, pods)
	allowed := pods
	if pods < 0 {
		allowed = max(w.replicas/4, 1)
		if _, err := s.api.remove("poddisruptionbudgets", w.namespace+"/"+w.name); err != nil {
			s.Detail("%v", err) // no budget existed
		}
	} else {
		s.api.put("poddisruptionbudgets", &policyv1.PodDisruptionBudget{
			TypeMeta: metav1.TypeMeta{Kind: "PodDisruptionBudget", APIVersion: "policy/v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: w.name},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: new(intstr.FromInt32(int32(pods))), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.name}},
			},
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.budgets = append(w.budgets, budgetAt{time.Now(), allowed})
}
