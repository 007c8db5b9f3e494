package podevents_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/agents/join"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/podevents"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/identity"
)

// Events are only about the pod that the caller has authenticated as.
func TestEvents(t *testing.T) {
	const pod = "web-1.shop"
	fails := &agentv1.ProbeFailure{Container: "app", Probe: "liveness", Class: "Timeout", Verdict: "Failure", Reason: "refused"}
	tests := map[string]struct {
		happens func(e *podevents.Events)
		want    []string // reason, action and field path
	}{
		"a join is refused": {
			func(e *podevents.Events) {
				e.Refused(join.Refusal{Dataplane: pod, Authenticated: true, Instance: "uid", Code: "NotFound"})
			},
			[]string{"JoinRefused JoinNotFound spec.initContainers{kuma-sidecar}"},
		},
		"of the pod's address": {
			func(e *podevents.Events) {
				e.Refused(join.Refusal{Dataplane: pod, Peer: "10.0.0.1", Code: "Unauthenticated"})
			},
			[]string{"JoinRefused JoinUnauthenticated spec.initContainers{kuma-sidecar}"},
		},
		"of another address": {func(e *podevents.Events) { e.Refused(join.Refusal{Dataplane: pod, Peer: "10.0.0.2"}) }, nil},
		"of an earlier pod": {
			func(e *podevents.Events) {
				e.Refused(join.Refusal{Dataplane: pod, Authenticated: true, Instance: "old"})
			}, nil,
		},
		"a new pod waits": {
			func(e *podevents.Events) { e.Refused(join.Refusal{Dataplane: pod, Peer: "10.0.0.1", Waiting: true}) }, nil,
		},
		"a pod waits for long": {
			func(e *podevents.Events) {
				e.Refused(join.Refusal{Dataplane: pod, Peer: "10.0.0.1", Code: "NotFound", Waiting: true, Lasting: true})
			},
			[]string{"JoinWaiting JoinNotFound spec.initContainers{kuma-sidecar}"},
		},
		"a probe fails": {
			func(e *podevents.Events) { e.ProbeFailed(identity.Subject{Dataplane: pod, Instance: "uid"}, fails) },
			[]string{"ProbeFailed Timeout spec.containers{app}"},
		},
		"a probe of an earlier pod": {
			func(e *podevents.Events) { e.ProbeFailed(identity.Subject{Dataplane: pod, Instance: "old"}, fails) }, nil,
		},
		"Envoy refuses calls": {
			func(e *podevents.Events) {
				e.CallsRefused(identity.Subject{Dataplane: pod, Instance: "uid"}, &agentv1.Refusal{Cause: "answers", Where: "inbound 80"})
			},
			[]string{"CallsRefused Refuseanswers spec.initContainers{kuma-sidecar}"},
		},
		"Envoy refuses a listener": {
			func(e *podevents.Events) { e.ListenerRefused("default/"+pod, "in:80", "port in use") },
			[]string{"ListenerRefused Listenin:80 spec.initContainers{kuma-sidecar}"},
		},
		"of an unknown pod":      {func(e *podevents.Events) { e.ListenerRefused("default/web-2.shop", "in:80", "port in use") }, nil},
		"of a written Dataplane": {func(e *podevents.Events) { e.ListenerRefused("default/web", "in:80", "port in use") }, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			tc.happens(&podevents.Events{Pod: podNamed, Record: func(e events.Event) {
				if e.Kind != "Pod" || e.Namespace != "shop" || e.Name != "web-1" || e.UID != "uid" || e.Note == "" {
					t.Errorf("event %+v", e)
				}
				got = append(got, e.Reason+" "+e.Action+" "+e.FieldPath)
			}})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			tc.happens(nil) // as with a store of files
		})
	}
}

func TestAbsent(t *testing.T) {
	e := &podevents.Events{Pod: func(watch.Key) *source.Pod {
		return &source.Pod{UID: "uid", Beyond: true, Problem: "is beyond the bounds"}
	}}
	for uid, want := range map[string]string{"uid": "its pod is beyond the bounds", "old": ""} {
		if got := e.Absent(identity.Subject{Dataplane: "web-1.shop", Instance: uid}); got != want {
			t.Errorf("Absent() of %s = %q, want %q", uid, got, want)
		}
	}
	kept := &podevents.Events{Pod: podNamed}
	if got := kept.Absent(identity.Subject{Dataplane: "web-1.shop", Instance: "uid"}); got != "" {
		t.Errorf("Absent() of a known pod = %q", got)
	}
}

func podNamed(key watch.Key) *source.Pod {
	if key != (watch.Key{Namespace: "shop", Name: "web-1"}) {
		return nil
	}
	return &source.Pod{UID: "uid", Address: "10.0.0.1", Sidecars: []string{"kuma-sidecar"}}
}
