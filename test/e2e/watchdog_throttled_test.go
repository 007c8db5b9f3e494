//go:build e2e

package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// watchdogAccount is the watchdog's service account.
const watchdogAccount = "sonde-watchdog"

// throttle gives the watchdog's lists of nodes and leases no share of the API server: it serves them one at a time,
// and meanwhile rejects others with 429.
const throttle = `
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: e2e-throttled}
spec:
  type: Limited
  limited: {nominalConcurrencyShares: 0, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: e2e-throttled}
spec:
  matchingPrecedence: 50
  priorityLevelConfiguration: {name: e2e-throttled}
  rules:
  - subjects: [{kind: ServiceAccount, serviceAccount: {name: ` + watchdogAccount + `, namespace: ` + systemNamespace + `}}]
    resourceRules: [{verbs: [list], apiGroups: ["", coordination.k8s.io], resources: [nodes, leases], clusterScope: true, namespaces: ["*"]}]
`

// flood occupies the one served request with another client's, until stop is called or the test ends. The API server
// waits 3 s for a nonexistent version of the nodes.
func flood(t *testing.T) (stop func()) {
	t.Helper()
	config := rest.CopyConfig(cluster.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + systemNamespace + ":" + watchdogAccount}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	const clients, pause = 4, 50 * time.Millisecond // the gap between two of them is small
	for range clients {
		running.Go(func() {
			ticker := time.NewTicker(pause)
			defer ticker.Stop()
			for ctx.Err() == nil {
				// It always fails.
				_ = client.CoreV1().RESTClient().Get().Resource("nodes").Param("resourceVersion", "999999999").Param("resourceVersionMatch", "NotOlderThan").
					MaxRetries(0).Do(ctx).Error()
				select {
				case <-ctx.Done():
				case <-ticker.C:
				}
			}
		})
	}
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// The API server has too many requests, by its priority and fairness, and the kubelets are disconnected until leases
// have expired: the watchdog has no data, and does nothing. The kubelets reconnect before the first probe succeeds.
func TestWatchdogThrottled(t *testing.T) {
	s := newScene(t, sceneOptions{})
	stop := flood(t)
	flows := cluster.client.FlowcontrolV1()
	calm := func() {
		stop()
		for _, err := range []error{
			flows.FlowSchemas().Delete(t.Context(), "e2e-throttled", metav1.DeleteOptions{}),
			flows.PriorityLevelConfigurations().Delete(t.Context(), "e2e-throttled", metav1.DeleteOptions{}),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	s.create(throttle)
	s.waitVerdict("unknown", "throttled")
	cut := s.seen.startCut(t)
	pass(t, 45*time.Second) // leases expire after 30 s
	if status, err := s.status(); err != nil || status.Verdict != "unknown" || status.Cause != "throttled" {
		t.Errorf("when leases have expired the status is %+v, %v, want unknown throttled", status, err)
	}
	s.seen.checkNothing("the API server had too many requests")
	cut.heal()
	waitNodes(t, cluster.nodes...)
	calm()
	s.waitVerdict("seen", "")
	pass(t, 10*time.Second) // some more probes
	s.seen.checkNothing("the API server has fewer requests again")
	waitMesh(t)
}
