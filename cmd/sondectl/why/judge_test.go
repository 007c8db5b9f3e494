package why_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/why"
	"github.com/sonde-mesh/sonde/internal/podcause"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/internal/testing/golden"
)

// notCounted is the control plane's text about a pod that exceeds its namespace's share.
const notCounted = podcause.NotCounted + "only the oldest pods of a namespace count, up to 32 MiB of memory"

// faults adds faults to the facts of a healthy pod. testdata has the expected reports.
var faults = map[string]func(*why.Facts){
	"well": func(*why.Facts) {},
	"not-asked-for": func(f *why.Facts) {
		uninjected(f)
		f.Namespace.Labels = nil
	},
	"older-than-the-label": func(f *why.Facts) {
		uninjected(f)
		f.Owner, f.Template = "Deployment web", &corev1.PodTemplateSpec{}
		f.Namespace.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "kubectl-label", Time: new(after(time.Minute)), FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:kuma.io/sidecar-injection":{}}}}`),
		}}
		tell(f, podcause.NotInjected, "", "it has no sidecar although kuma.io/sidecar-injection of namespace shop asks for one: it was created before the label was set, or without the webhook")
	},
	"made-by-a-job": func(f *why.Facts) {
		uninjected(f)
		f.Owner = "Job web"
	},
	"older-than-the-template": func(f *why.Facts) {
		uninjected(f)
		f.Namespace.Labels = nil
		f.Owner, f.Template = "Deployment web", &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{mesh.LabelOwnInjection: "enabled"}}}
	},
	"disabled": func(f *why.Facts) {
		uninjected(f)
		f.Pod.Annotations = map[string]string{mesh.LabelInjection: "disabled"}
	},
	"host-network": func(f *why.Facts) {
		uninjected(f)
		f.Pod.Spec.HostNetwork = true
		tell(f, podcause.InjectionWarning, "", "spec.hostNetwork: redirection would apply to the whole node: not injected")
	},
	"kube-system": func(f *why.Facts) {
		uninjected(f)
		f.Pod.Namespace, f.Namespace.Name = "kube-system", "kube-system"
	},
	"no-webhook": func(f *why.Facts) {
		uninjected(f)
		f.NoWebhook = true
	},
	"of-another-mesh": func(f *why.Facts) {
		uninjected(f)
		f.Pod.Spec.Containers = append(f.Pod.Spec.Containers, corev1.Container{Name: mesh.ContainerSidecar})
	},
	"gateway": func(f *why.Facts) {
		f.Pod.Spec.InitContainers[0].Args = []string{mesh.ArgRedirectInbound + "false"}
		f.Plane.Services = nil
	},
	"gateway-of-an-older-injection": func(f *why.Facts) {
		f.Pod.Annotations[mesh.AnnotationGateway] = "enabled"
	},
	"not-injected-and-not-ready": func(f *why.Facts) {
		uninjected(f)
		unready(f, "app")
		tell(f, "Unhealthy", "app", "Readiness probe failed: HTTP probe failed with statuscode: 500")
	},
	"outbound-not-accepted": func(f *why.Facts) {
		f.Plane.Dataplane.Outbounds = []*adminv1.OutboundHealth{{
			Address: "0.0.0.0:15001", Health: adminv1.Endpoint_NOT_READY, Reason: "its Envoy has not accepted the listener yet", Since: timestamppb.New(start.Add(time.Minute)),
		}}
	},
	"outbound-refused": func(f *why.Facts) {
		f.Plane.Dataplane.Outbounds = []*adminv1.OutboundHealth{{
			Address: "127.0.0.1:10001", Service: "db", Health: adminv1.Endpoint_NOT_READY, Reason: "its Envoy refuses the listener: cannot bind",
		}}
		f.Plane.Proxy.Streams[0].Types = []*adminv1.TypeStatus{{Kind: "listeners", Nacks: []*adminv1.Nack{{Resource: "outbound:127.0.0.1:10001", Reason: "cannot bind"}}}}
	},
	"injection-warning": func(f *why.Facts) {
		f.Pod.Annotations[mesh.AnnotationInjectionWarnings] = "containers[app].livenessProbe: host: left as it is\na second one"
	},
	"unschedulable": func(f *why.Facts) {
		pending(f, mesh.ContainerInit)
		f.Pod.Spec.NodeName = ""
		setCondition(f, corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.")
		tell(f, "FailedScheduling", "", "0/3 nodes are available: 3 Insufficient cpu.")
	},
	"volume-not-mounted": func(f *why.Facts) {
		pending(f, mesh.ContainerInit)
		tell(f, "FailedMount", "", `MountVolume.SetUp failed for volume "data" : secret "data" not found`)
	},
	"image-of-the-sidecar": func(f *why.Facts) {
		pending(f, mesh.ContainerInit)
		waits(f, mesh.ContainerInit, "ImagePullBackOff", `Back-off pulling image "sonde"`, nil)
		tell(f, "Failed", mesh.ContainerInit, `Failed to pull image "sonde": not found`)
	},
	"image-of-the-application": func(f *why.Facts) {
		pending(f, "app")
		waits(f, "app", "ErrImagePull", `rpc error: code = NotFound desc = failed to pull web:1`, nil)
	},
	"container-not-made": func(f *why.Facts) {
		pending(f, "app")
		waits(f, "app", "CreateContainerConfigError", `configmap "settings" not found`, nil)
	},
	"init-of-sonde-fails": func(f *why.Facts) {
		pending(f, mesh.ContainerInit)
		waits(f, mesh.ContainerInit, "CrashLoopBackOff", "back-off 20s", &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "first line\nnftables: operation not permitted\n"})
		tell(f, "BackOff", mesh.ContainerInit, "Back-off restarting failed container kuma-init")
	},
	"init-of-the-user-fails": func(f *why.Facts) {
		pending(f, "migrate")
		waits(f, "migrate", "CrashLoopBackOff", "back-off 20s", &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"})
	},
	"init-of-the-user-runs": func(f *why.Facts) {
		pending(f, "migrate")
		status(f, "migrate").State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: after(time.Minute)}}
	},
	"sidecar-crashes": func(f *why.Facts) {
		pending(f, mesh.ContainerSidecar)
		waits(f, mesh.ContainerSidecar, "CrashLoopBackOff", "back-off 20s", &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error", Message: "sonde-dp: run: --mesh: must be given"})
	},
	"sidecar-out-of-memory": func(f *why.Facts) {
		unready(f, mesh.ContainerSidecar)
		waits(f, mesh.ContainerSidecar, "CrashLoopBackOff", "back-off 20s", &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"})
	},
	"join-refused": func(f *why.Facts) {
		joinsNot(f, adminv1.AgentState_NEVER_JOINED, "")
		tell(f, podcause.JoinRefused, mesh.ContainerSidecar, podcause.Refused(`namespace shop does not allow mesh "blue"`))
	},
	"join-refused-without-the-control-plane": func(f *why.Facts) {
		joinsNot(f, adminv1.AgentState_NEVER_JOINED, "")
		f.Plane, f.NotAsked = nil, []string{"the control plane: no replica of the control plane in namespace \"sonde-system\" is Ready"}
		tell(f, podcause.JoinRefused, mesh.ContainerSidecar, podcause.Refused(`namespace shop does not allow mesh "blue"`))
	},
	"join-waits": func(f *why.Facts) {
		joinsNot(f, adminv1.AgentState_WAITING, `mesh "blue" is not known (yet)`)
		tell(f, podcause.JoinWaiting, mesh.ContainerSidecar, podcause.Waits(`mesh "blue" is not known (yet)`))
	},
	"never-joined": func(f *why.Facts) {
		joinsNot(f, adminv1.AgentState_NEVER_JOINED, "")
		tell(f, "Unhealthy", mesh.ContainerSidecar, "Startup probe failed: HTTP probe failed with statuscode: 503")
	},
	"not-redirected": func(f *why.Facts) {
		joinsNot(f, adminv1.AgentState_CONNECTED, "")
		f.Pod.Spec.InitContainers = slices.DeleteFunc(f.Pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == mesh.ContainerInit })
		sidecar := podspec.Container(&f.Pod.Spec, mesh.ContainerSidecar)
		sidecar.Env = append(sidecar.Env, corev1.EnvVar{Name: mesh.EnvRedirection, Value: `{"excludeInboundPorts":[9000],"families":"dualstack"}`})
		tell(f, "Unhealthy", mesh.ContainerSidecar, `Startup probe failed: Get "http://10.0.0.7:15022/readyz": dial tcp 10.0.0.7:15022: connect: connection refused`)
	},
	"not-known": func(f *why.Facts) {
		joinsNot(f, adminv1.AgentState_NEVER_JOINED, "")
		f.Plane.Proxy, f.Plane.Dataplane = nil, nil
	},
	"not-known-and-ready": func(f *why.Facts) {
		f.Plane.Proxy.Known, f.Plane.Dataplane, f.Plane.Services, f.Services, f.Slices = false, nil, nil, nil, nil
	},
	"beyond-the-share": func(f *why.Facts) {
		joinsNot(f, adminv1.AgentState_WAITING, "its pod "+notCounted)
		f.Plane.Proxy.Known, f.Plane.Proxy.AgentState.Since, f.Plane.Dataplane = false, timestamppb.New(start.Add(time.Minute)), nil
		tell(f, podcause.JoinWaiting, mesh.ContainerSidecar, podcause.Waits("its pod "+notCounted))
	},
	"beyond-the-share-and-ready": func(f *why.Facts) {
		f.Plane.Proxy.Known, f.Plane.Dataplane, f.Plane.Services, f.Services, f.Slices = false, nil, nil, nil, nil
		tell(f, podcause.BeyondBounds, "", notCounted)
	},
	"mesh-deleted": func(f *why.Facts) { f.Plane = &why.Plane{Unknown: `mesh "default" not found`} },
	"mesh-not-there": func(f *why.Facts) {
		joinsNot(f, adminv1.AgentState_WAITING, "")
		f.Plane = &why.Plane{Unknown: `mesh "blue" not found`}
		tell(f, podcause.JoinWaiting, mesh.ContainerSidecar, podcause.Waits(`mesh "blue" is not known (yet)`))
	},
	"envoy-down": func(f *why.Facts) {
		unready(f, mesh.ContainerSidecar)
		f.Plane.Proxy.Agent.EnvoyDown = "exit status 1: cannot read the bootstrap"
	},
	"calls-refused": func(f *why.Facts) {
		f.Plane.Proxy.Agent.Refused = []string{"answers of the application that HTTP clients accept and Envoy does not, inbound 8080: 12 in the last minute"}
	},
	"certificate-expired": func(f *why.Facts) {
		f.Plane.Proxy.Agent.CertificateExpires = timestamppb.New(start.Add(4 * time.Minute))
	},
	"agent-lost": func(f *why.Facts) {
		f.Plane.Proxy.AgentState = &adminv1.AgentState{Phase: adminv1.AgentState_LOST, Since: timestamppb.New(start.Add(7 * time.Minute))}
	},
	"listener-refused": func(f *why.Facts) {
		unready(f, mesh.ContainerSidecar)
		listenerRefused(f)
		tell(f, podcause.ListenerRefused, mesh.ContainerSidecar, podcause.Listener("inbound:capture", "cannot bind '0.0.0.0:15006': Address already in use"))
	},
	"listener-refused-without-the-control-plane": func(f *why.Facts) {
		unready(f, mesh.ContainerSidecar)
		f.Plane = nil
		tell(f, podcause.ListenerRefused, mesh.ContainerSidecar, podcause.Listener("inbound:capture", "cannot bind '0.0.0.0:15006': Address already in use"))
	},
	"cluster-refused": func(f *why.Facts) {
		f.Plane.Proxy.Streams[0].Types = []*adminv1.TypeStatus{{Kind: "clusters", Nacks: []*adminv1.Nack{{Resource: "backend", Reason: "it is wrong"}}}}
	},
	"sidecar-not-ready": func(f *why.Facts) {
		unready(f, mesh.ContainerSidecar)
		tell(f, podcause.ProbeFailed, mesh.ContainerSidecar, "Readiness probe failed: the redirection of the pod's connections is missing")
	},
	"startup-probe": func(f *why.Facts) {
		unready(f, "app")
		status(f, "app").Started = new(false)
		tell(f, podcause.ProbeFailed, "app", podcause.Failure{Probe: "startup", Verdict: "failure", Reason: `Get "http://10.0.0.7:8080/started": dial tcp 10.0.0.7:8080: connect: connection refused`}.String())
	},
	"readiness-status": func(f *why.Facts) {
		unready(f, "app")
		tell(f, "Unhealthy", "app", "Readiness probe failed: HTTP probe failed with statuscode: 404")
		tell(f, podcause.ProbeFailed, "app", podcause.Failure{Probe: "readiness", Verdict: "failure", Reason: "HTTP probe failed with statuscode: 404"}.String())
	},
	"readiness-timeout": func(f *why.Facts) {
		unready(f, "app")
		tell(f, podcause.ProbeFailed, "app", podcause.Failure{Probe: "readiness", Verdict: "failure", Reason: `Get "http://10.0.0.7:8080/ready": context deadline exceeded`}.String())
		tell(f, "Unhealthy", "app", "Readiness probe failed: HTTP probe failed with statuscode: 503")
	},
	"readiness-not-yet": func(f *why.Facts) { unready(f, "app") },
	"verdicts-of-the-agent": func(f *why.Facts) {
		unready(f, "app")
		tell(f, podcause.ProbeFailed, "app", podcause.Failure{Probe: "readiness", Verdict: "failure", Reason: "an earlier reason"}.String())
		f.Plane.Proxy.Verdicts = verdicts("failure", "connection refused")
		f.Plane.Proxy.Verdicts.LeftOut = 3
	},
	"well-by-the-agent": func(f *why.Facts) { f.Plane.Proxy.Verdicts = verdicts("success", "") },
	"readiness-gate": func(f *why.Facts) {
		f.Pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lb.example.com/ready"}, {ConditionType: "dns.example.com/ready"}}
		setCondition(f, "lb.example.com/ready", corev1.ConditionFalse, "Unhealthy", "target is draining")
		setCondition(f, corev1.PodReady, corev1.ConditionFalse, "ReadinessGatesNotReady", "the gates")
	},
	"node-not-heard": func(f *why.Facts) { setCondition(f, corev1.PodReady, corev1.ConditionFalse, "", "") },
	"restarted-by-liveness": func(f *why.Facts) {
		restarted(f, "app", &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"})
		tell(f, "Killing", "app", "Container app failed liveness probe, will be restarted")
		tell(f, podcause.ProbeFailed, "app", podcause.Failure{Probe: "liveness", Verdict: "failure", Reason: "HTTP probe failed with statuscode: 500"}.String())
	},
	"restarted-by-grant": func(f *why.Facts) {
		restarted(f, "app", &corev1.ContainerStateTerminated{ExitCode: 0, Reason: "Completed"})
		tell(f, "Killing", "app", "Container app failed liveness probe, will be restarted")
		tell(f, podcause.RestartGranted, "app", "container app may restart: its liveness probe fails, and it has restarted 2 times")
	},
	"restarted-by-startup": func(f *why.Facts) {
		restarted(f, "app", &corev1.ContainerStateTerminated{ExitCode: 143, Reason: "Error"})
		tell(f, "Killing", "app", "Container app failed startup probe, will be restarted")
		tell(f, "Unhealthy", "app", "Startup probe failed: HTTP probe failed with statuscode: 503")
	},
	"out-of-memory": func(f *why.Facts) {
		f.Pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
		restarted(f, "app", &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"})
		tell(f, "Killing", "app", "Container app failed liveness probe, will be restarted") // an earlier event
	},
	"restarted-by-itself": func(f *why.Facts) {
		restarted(f, "app", &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "panic: no database"})
	},
	"crash-loop": func(f *why.Facts) {
		unready(f, "app")
		waits(f, "app", "CrashLoopBackOff", "back-off 5m0s", &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"})
		tell(f, "BackOff", "app", "Back-off restarting failed container app in pod web-1")
	},
	"all-containers-restart": func(f *why.Facts) {
		unready(f, "app")
		end := &corev1.ContainerStateTerminated{ExitCode: 88, Reason: "Error", FinishedAt: after(10*time.Minute - time.Second)}
		status(f, "app").State = corev1.ContainerState{Terminated: end}
		setCondition(f, corev1.AllContainersRestarting, corev1.ConditionTrue, "RestartAllContainersStarted", "container exited with restart policy rule")
	},
	"all-containers-restart-and-ready": func(f *why.Facts) {
		setCondition(f, corev1.AllContainersRestarting, corev1.ConditionTrue, "RestartAllContainersStarted", "container exited with restart policy rule")
	},
	"all-containers-have-restarted": func(f *why.Facts) {
		setCondition(f, corev1.AllContainersRestarting, corev1.ConditionFalse, "", "")
	},
	"no-service":     func(f *why.Facts) { f.Services, f.Slices = nil, nil },
	"selects-others": func(f *why.Facts) { f.Services[0].Spec.Selector = map[string]string{"app": "backend"}; f.Slices = nil },
	"nearly-selects": func(f *why.Facts) { f.Services[0].Spec.Selector = map[string]string{"app": "wep"}; f.Slices = nil },
	"no-such-port":   func(f *why.Facts) { f.Services[0].Spec.Ports[0].TargetPort = intstr.FromString("web"); f.Slices = nil },
	"no-endpoint":    func(f *why.Facts) { f.Slices = nil },
	"endpoint-late":  func(f *why.Facts) { f.Slices[0].Endpoints[0].Conditions.Ready = new(false) },
	"publish-not-ready": func(f *why.Facts) {
		unready(f, "app")
		f.Services[0].Spec.PublishNotReadyAddresses, f.Slices[0].Endpoints[0].Conditions.Ready = true, new(true)
	},
	"left-out": func(f *why.Facts) {
		e := f.Plane.Services[0].Endpoints[0]
		e.Health, e.Reason = adminv1.Endpoint_NOT_READY, "its Dataplane is unknown"
	},
	"terminating": func(f *why.Facts) {
		f.Pod.DeletionTimestamp, f.Pod.DeletionGracePeriodSeconds = new(after(10*time.Minute+10*time.Second)), new(int64(30))
		tell(f, "Killing", "app", "Stopping container app")
	},
	"terminating-for-too-long": func(f *why.Facts) {
		f.Pod.DeletionTimestamp, f.Pod.DeletionGracePeriodSeconds = new(after(9*time.Minute)), new(int64(30))
	},
	"waits-for-finalizers": func(f *why.Facts) {
		f.Pod.DeletionTimestamp, f.Pod.DeletionGracePeriodSeconds, f.Pod.Finalizers = new(after(9*time.Minute)), new(int64(30)), []string{"example.com/clean"}
		for _, name := range []string{"app", mesh.ContainerSidecar} {
			unready(f, name)
			status(f, name).State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: after(9 * time.Minute)}}
		}
		f.Plane.Proxy.AgentState.Phase = adminv1.AgentState_STOPPED
	},
	"drained": func(f *why.Facts) {
		f.Plane.Proxy.Draining, f.Plane.Proxy.Drain = true, "node node-a is drained: kernel update"
		tell(f, podcause.Draining, "", podcause.Drains("node node-a is drained: kernel update"))
	},
	"drained-without-the-control-plane": func(f *why.Facts) {
		f.Pod.Annotations[mesh.AnnotationDrain], f.Plane = "kernel update", nil
		f.NotAsked = []string{"the control plane: no replica of the control plane in namespace \"sonde-system\" is Ready"}
	},
	"serves-on": func(f *why.Facts) {
		f.Plane.Proxy.Drain = "node node-a: taint karpenter.sh/disrupted; serves on: Service shop/web would have fewer than 1 proxies for load balancers"
	},
	"held": func(f *why.Facts) {
		f.Pod.Annotations[mesh.AnnotationGuardedLiveness] = "enabled"
		setCondition(f, mesh.ConditionLivenessHeld, corev1.ConditionTrue, "Unavailable", "app: 1 of 3 pods is unavailable; failing since 2026-11-27T10:04:00Z")
		tell(f, podcause.RestartHeld, "app", "the liveness probe of container app fails, and it may not restart: 1 of 3 pods is unavailable")
		f.Plane.Restart = &adminv1.ExplainRestartResponse{Containers: []*adminv1.GuardedContainer{{
			Name: "app", Restart: &adminv1.Restart{State: adminv1.Restart_WAITING, Decision: &adminv1.RestartDecision{Needs: "another pod of the workload has to become available"}},
		}}}
	},
	"all-are-held": func(f *why.Facts) {
		setCondition(f, mesh.ConditionLivenessHeld, corev1.ConditionTrue, "Unavailable", "app: 1 of 3 pods is unavailable")
		drainAll(f, "web_shop_svc_80")
	},
	"all-of-one-service-drain": func(f *why.Facts) {
		f.Plane.Proxy.Draining, f.Plane.Proxy.Drain = true, "node node-a is drained: kernel update"
		drainAll(f, "web_shop_svc_80", "admin_shop_svc_81")
		f.Plane.Services[1].Endpoints[0].GetsTraffic = false
	},
	"the-last-terminates": func(f *why.Facts) {
		f.Pod.DeletionTimestamp, f.Pod.DeletionGracePeriodSeconds = new(after(10*time.Minute+10*time.Second)), new(int64(30))
		drainAll(f, "web_shop_svc_80")
	},
	"frozen": func(f *why.Facts) {
		setCondition(f, corev1.PodReady, corev1.ConditionFalse, "", "")
		f.Slices[0].Endpoints[0].Conditions.Ready = new(false)
		f.Plane.Services[0].Endpoints[0].Reason = mesh.FrozenReason + "its node and most of its zone, or of the mesh, are not seen: the endpoint stays although Kubernetes removes it"
	},
	"completed": func(f *why.Facts) {
		f.Pod.Status.Phase = corev1.PodSucceeded
		status(f, "app").State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: after(6 * time.Minute)}}
	},
	"failed": func(f *why.Facts) {
		f.Pod.Status.Phase = corev1.PodFailed
		status(f, "app").State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 4, Message: "no input", FinishedAt: after(6 * time.Minute)}}
	},
	"evicted": func(f *why.Facts) {
		f.Pod.Status.Phase, f.Pod.Status.Reason, f.Pod.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory."
		f.Pod.Status.ContainerStatuses, f.Pod.Status.InitContainerStatuses = nil, nil
	},
	"nothing-said": func(f *why.Facts) {
		f.Pod.Status, f.Pod.Spec.NodeName, f.Plane, f.Slices = corev1.PodStatus{Phase: corev1.PodPending}, "", nil, nil
	},
	"job-in-another-form": func(f *why.Facts) {
		f.Pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		unready(f, "app")
		status(f, "app").State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: after(6 * time.Minute)}}
		f.Services, f.Slices = nil, nil
	},
	"started-again": func(f *why.Facts) {
		unready(f, "app")
		status(f, "app").State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", FinishedAt: after(10*time.Minute - 5*time.Second)}}
	},
	"not-started-again": func(f *why.Facts) {
		unready(f, "app")
		status(f, "app").State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", FinishedAt: after(6 * time.Minute)}}
	},
	"done-on-success": func(f *why.Facts) {
		f.Pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		unready(f, "app")
		status(f, "app").State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: after(6 * time.Minute)}}
	},
	"several": func(f *why.Facts) {
		unready(f, "app")
		tell(f, podcause.ProbeFailed, "app", podcause.Failure{Probe: "readiness", Verdict: "failure", Reason: "HTTP probe failed with statuscode: 404"}.String())
		restarted(f, "app", &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"})
		f.Plane.Proxy.Draining, f.Plane.Proxy.Drain = true, "pod is drained"
		f.NotAsked = []string{`read events of the pod: events is forbidden: User "jane" cannot list resource "events" in API group "" in the namespace "shop"`}
	},
}

// joinsNot makes the agent run without having joined.
func joinsNot(f *why.Facts, phase adminv1.AgentState_Phase, refusal string) {
	running := status(f, mesh.ContainerSidecar).State
	pending(f, mesh.ContainerSidecar)
	s := status(f, mesh.ContainerSidecar)
	s.State, s.Started = running, new(false)
	f.Plane.Proxy = &adminv1.Proxy{Mesh: "default", Name: "web-1.shop", Known: true, AgentState: &adminv1.AgentState{Phase: phase, Refusal: refusal}}
}

func listenerRefused(f *why.Facts) {
	f.Plane.Proxy.Streams[0].Types = []*adminv1.TypeStatus{{Kind: "listeners", Nacks: []*adminv1.Nack{{
		Resource: "inbound:capture", Reason: "cannot bind '0.0.0.0:15006': Address already in use", At: timestamppb.New(start.Add(time.Minute)),
	}}}}
}

// TestGoldenJudgements compares the report for each fault with its file in testdata.
func TestGoldenJudgements(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			f := well(t)
			fault(f)
			r := why.Judge(f)
			var text printer.Output
			r.Write(&text)
			got := "state: " + string(r.State) + "\n" + text.String()
			golden.Compare(t, name, got)
		})
	}
}

// TestGoldenOrphans finds files without a fault.
func TestGoldenOrphans(t *testing.T) {
	golden.Orphans(t, func(name string) bool { return faults[name] != nil })
}

// TestGuide finds causes that docs/guides/troubleshooting.md does not explain.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guides", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, fault := range faults {
		f := well(t)
		fault(f)
		for _, found := range why.Judge(f).Findings {
			if !strings.Contains(string(guide), "`"+string(found.Cause)+"`") {
				t.Errorf("%s: the guide has no cause `%s`", name, found.Cause)
			}
		}
	}
}
