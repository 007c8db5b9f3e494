package webhook_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"bytes"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/webhook"
)

// seedPod is the pod of the golden case seed as an API server sends it for a Deployment: with defaults, managed fields, and the volume of
// the service account.
func seedPod(t testing.TB) []byte {
	t.Helper()
	return toJSON(t, `
apiVersion: v1
kind: Pod
metadata:
  generateName: busybox-7d9f8b6c5d-
  labels: {app: busybox, pod-template-hash: 7d9f8b6c5d}
  annotations: {traffic.kuma.io/exclude-inbound-ports: "9800"}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: busybox-7d9f8b6c5d, uid: 2c2f0f7e-52c0-4b0e-8a4b-0b5a0d5a8a11, controller: true, blockOwnerDeletion: true}]
  managedFields: [{manager: kube-controller-manager, operation: Update, apiVersion: v1, time: "2026-01-01T00:00:00Z", fieldsType: FieldsV1, fieldsV1: {
    "f:metadata": {"f:annotations": {".": {}, "f:traffic.kuma.io/exclude-inbound-ports": {}}, "f:generateName": {}, "f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}}, "f:ownerReferences": {".": {}}},
    "f:spec": {"f:containers": {'k:{"name":"busybox"}': {".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:livenessProbe": {".": {}, "f:grpc": {}, "f:periodSeconds": {}}, "f:name": {}, "f:readinessProbe": {".": {}, "f:httpGet": {}}, "f:startupProbe": {".": {}, "f:tcpSocket": {}}}}, "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}}}}]
spec:
  containers:
  - name: busybox
    image: busybox
    imagePullPolicy: Always
    resources: {}
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    readinessProbe: {httpGet: {path: /healthz, port: 6851, scheme: HTTP}, initialDelaySeconds: 3, periodSeconds: 3, timeoutSeconds: 1, successThreshold: 1, failureThreshold: 3}
    livenessProbe: {grpc: {port: 6852, service: liveness}, initialDelaySeconds: 3, periodSeconds: 3, timeoutSeconds: 1, successThreshold: 1, failureThreshold: 3}
    startupProbe: {tcpSocket: {port: 6853}, initialDelaySeconds: 3, periodSeconds: 3, timeoutSeconds: 1, successThreshold: 1, failureThreshold: 3}
    volumeMounts: [{name: kube-api-access-x8k2p, readOnly: true, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]
  volumes: [{name: kube-api-access-x8k2p, projected: {defaultMode: 420, sources: [{serviceAccountToken: {expirationSeconds: 3607, path: token}}, {configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}}, {downwardAPI: {items: [{path: namespace, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}]}}]}}]
  restartPolicy: Always
  terminationGracePeriodSeconds: 30
  dnsPolicy: ClusterFirst
  serviceAccountName: default
  serviceAccount: default
  securityContext: {}
  schedulerName: default-scheduler
  tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}, {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}]
  enableServiceLinks: true
  preemptionPolicy: PreemptLowerPriority
  priority: 0
status: {}
`)
}

// largePod is seedPod with 2,000 environment variables.
func largePod(t testing.TB) []byte {
	t.Helper()
	var env strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&env, `{"name":"VARIABLE_%d","value":"the value of variable %d"},`, i, i)
	}
	list := `"env":[` + strings.TrimSuffix(env.String(), ",") + `],`
	return bytes.Replace(seedPod(t), []byte(`"image":"busybox",`), []byte(list+`"image":"busybox",`), 1)
}

// BenchmarkAdmission is one admission, from the bytes of the AdmissionReview to those of the answer.
func BenchmarkAdmission(b *testing.B) {
	for name, pod := range map[string][]byte{"seed": seedPod(b), "2000 variables": largePod(b)} {
		b.Run(name, func(b *testing.B) {
			handler := newServer(b, enabled().options()).Handler()
			body := podReview("shop", pod)
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, webhook.PathInject, nil)
			r.Header.Set("Content-Type", "application/json")
			r.ContentLength = int64(len(body))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				r.Body = nopCloser{bytes.NewReader(body)}
				handler.ServeHTTP(w, r)
				if w.Code != http.StatusOK || !bytes.Contains(w.Body.Bytes(), []byte(`"patch":`)) {
					b.Fatalf("%d: %s", w.Code, w.Body)
				}
			}
		})
	}
}

type nopCloser struct{ *bytes.Reader }

func (nopCloser) Close() error { return nil }

// BenchmarkAdmissionsOverTLS sends 500 admissions of the seed's pod per second, as an API server does: on one HTTP/2 connection. It reports
// how long they took, from the time at which each was due.
func BenchmarkAdmissionsOverTLS(b *testing.B) {
	const rate = 500
	url, client, _ := serve(b, enabled().options())
	body := podReview("shop", seedPod(b))
	send(b, client, url+webhook.PathInject, body) // connects
	took := make([]time.Duration, b.N)
	var group errgroup.Group
	start := time.Now()
	b.ResetTimer()
	for i := range b.N {
		due := start.Add(time.Duration(i) * time.Second / rate)
		<-time.After(time.Until(due))
		group.Go(func() error {
			if answer, text := send(b, client, url+webhook.PathInject, body); answer.StatusCode != http.StatusOK {
				return fmt.Errorf("%d: %s", answer.StatusCode, text)
			}
			took[i] = time.Since(due)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	for name, share := range map[string]float64{"p50-ms": 0.5, "p99-ms": 0.99, "max-ms": 1} {
		b.ReportMetric(float64(took[int(share*float64(b.N-1))].Microseconds())/1000, name)
	}
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "admissions/s")
}
