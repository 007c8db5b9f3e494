package why_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/why"
	"github.com/sonde-mesh/sonde/webhook"
)

// start is the creation time of the pod, 10 minutes before the report.
var start = time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)

func after(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(d)) }

// userPod is the pod before injection.
func userPod() *corev1.Pod {
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080)}}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "uid-1", CreationTimestamp: after(0), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeName: "node-a", ServiceAccountName: "default",
			InitContainers: []corev1.Container{{Name: "migrate", Image: "migrate:1"}},
			Containers: []corev1.Container{{
				Name: "app", Image: "web:1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				ReadinessProbe: probe("/ready"), LivenessProbe: probe("/alive"), StartupProbe: probe("/started"),
			}},
		},
	}
}

// well returns the facts of a healthy pod, 10 minutes after its creation.
func well(t *testing.T) *why.Facts {
	t.Helper()
	pod, _, err := webhook.Inject(userPod(), webhook.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.7"}
	for _, c := range pod.Spec.InitContainers {
		s := corev1.ContainerStatus{Name: c.Name, Ready: true, Started: new(true)}
		s.State.Terminated = &corev1.ContainerStateTerminated{FinishedAt: after(10 * time.Second)}
		if c.RestartPolicy != nil {
			s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: after(10 * time.Second)}}
		}
		pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, s)
	}
	for _, c := range pod.Spec.Containers {
		s := corev1.ContainerStatus{Name: c.Name, Ready: true, Started: new(true)}
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: after(20 * time.Second)}
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, s)
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: after(time.Minute)})
	}
	return &why.Facts{
		Now: start.Add(10 * time.Minute), Pod: pod,
		Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{mesh.LabelInjection: "enabled"}}},
		Services: []corev1.Service{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "web"},
				Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}},
			},
		}},
		Slices: []discoveryv1.EndpointSlice{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			Endpoints:  []discoveryv1.Endpoint{{TargetRef: &corev1.ObjectReference{UID: "uid-1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		}},
		Plane: &why.Plane{
			Dataplane: &adminv1.Dataplane{},
			Proxy: &adminv1.Proxy{
				Mesh: "default", Name: "web-1.shop", Known: true, Agent: &adminv1.Agent{}, AgentState: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED},
				Streams: []*adminv1.Stream{{}},
			},
			Services: []*adminv1.Service{{Name: "web_shop_svc_80", Endpoints: []*adminv1.Endpoint{{Address: "10.0.0.7:8080", Dataplane: "web-1.shop", Health: adminv1.Endpoint_READY}}}},
		},
	}
}

// status returns the status of a container.
func status(f *why.Facts, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{f.Pod.Status.InitContainerStatuses, f.Pod.Status.ContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	panic("no container " + name)
}

// setCondition sets a condition of the pod since a minute before now.
func setCondition(f *why.Facts, kind corev1.PodConditionType, value corev1.ConditionStatus, reason, message string) {
	f.Pod.Status.Conditions = slices.DeleteFunc(f.Pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	f.Pod.Status.Conditions = append(f.Pod.Status.Conditions, corev1.PodCondition{
		Type: kind, Status: value, Reason: reason, Message: message, LastTransitionTime: after(5 * time.Minute),
	})
}

// unready makes a container not ready, and so the endpoint in the slice.
func unready(f *why.Facts, container string) {
	status(f, container).Ready = false
	const reason = "ContainersNotReady"
	message := "containers with unready status: [" + container + "]"
	setCondition(f, corev1.ContainersReady, corev1.ConditionFalse, reason, message)
	setCondition(f, corev1.PodReady, corev1.ConditionFalse, reason, message)
	f.Slices[0].Endpoints[0].Conditions.Ready = new(false)
}

// pending makes all containers from this one on wait.
func pending(f *why.Facts, from string) {
	unready(f, from)
	reached := false
	for _, list := range [][]corev1.ContainerStatus{f.Pod.Status.InitContainerStatuses, f.Pod.Status.ContainerStatuses} {
		for i := range list {
			if reached = reached || list[i].Name == from; reached {
				list[i] = corev1.ContainerStatus{Name: list[i].Name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}
			}
		}
	}
	f.Pod.Status.Phase = corev1.PodPending
}

// waits makes a container wait for a reason, after it has terminated in this way.
func waits(f *why.Facts, container, reason, message string, last *corev1.ContainerStateTerminated) {
	s := status(f, container)
	s.Ready, s.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	s.LastTerminationState.Terminated = last
	if last != nil {
		last.FinishedAt = after(8 * time.Minute)
		s.RestartCount = 3
	}
}

// restarted makes a container run again after it has terminated in this way.
func restarted(f *why.Facts, container string, last *corev1.ContainerStateTerminated) {
	s := status(f, container)
	last.FinishedAt = after(8 * time.Minute)
	s.RestartCount, s.LastTerminationState.Terminated = 3, last
	s.State.Running = &corev1.ContainerStateRunning{StartedAt: after(8*time.Minute + 5*time.Second)}
}

// tell adds the newest event, about a container.
func tell(f *why.Facts, reason, part, note string) {
	f.Events = append([]why.Event{{Reason: reason, Note: note, Part: part, At: start.Add(9 * time.Minute)}}, f.Events...)
}

// verdicts are the agent's, with this verdict of the readiness probe since two minutes before now.
func verdicts(readiness, reason string) *adminv1.Verdicts {
	change := func(verdict string, at time.Duration) *adminv1.VerdictChange {
		return &adminv1.VerdictChange{Verdict: verdict, At: timestamppb.New(start.Add(at))}
	}
	return &adminv1.Verdicts{Probes: []*adminv1.ProbeVerdicts{
		{Container: "app", Probe: "startup"},
		{Container: "app", Probe: "liveness", Total: 1, Changes: []*adminv1.VerdictChange{change("success", time.Minute)}},
		{Container: "app", Probe: "readiness", Reason: reason, Total: 2, Changes: []*adminv1.VerdictChange{change("errored", time.Minute), change(readiness, 8*time.Minute)}},
	}}
}

// drainAll makes the pod's endpoints of these services drain, while no other endpoint of them is ready.
func drainAll(f *why.Facts, services ...string) {
	f.Plane.Services = nil
	for _, name := range services {
		f.Plane.Services = append(f.Plane.Services, &adminv1.Service{Name: name, Endpoints: []*adminv1.Endpoint{
			{Address: "10.0.0.7:8080", Dataplane: "web-1.shop", Health: adminv1.Endpoint_DRAINING, GetsTraffic: true},
			{Address: "10.0.0.8:8080", Dataplane: "web-2.shop", Health: adminv1.Endpoint_DRAINING, GetsTraffic: true},
		}})
	}
}

// uninjected removes the sidecar of the pod.
func uninjected(f *why.Facts) {
	was := f.Pod
	f.Pod = userPod()
	f.Pod.Status, f.Plane = was.Status, nil
	f.Pod.Status.InitContainerStatuses = nil
	f.Pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: types.UID("rs"), Controller: new(true)}}
}
