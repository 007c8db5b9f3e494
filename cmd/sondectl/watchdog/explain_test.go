package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// dependants are objects by name.
type dependants map[string]scale.Object

func (d dependants) Get(_ context.Context, ref v1alpha1.DependantRef) (scale.Object, error) {
	if o, ok := d[ref.Name]; ok {
		return o, nil
	}
	return scale.Object{}, scale.ErrGone
}

func (dependants) Annotate(context.Context, v1alpha1.DependantRef, string, map[string]*string) (string, error) {
	return "", errors.New("explain writes")
}

func (dependants) SetReplicas(context.Context, v1alpha1.DependantRef, string, int32) (string, error) {
	return "", errors.New("explain writes")
}

func ref(name string) v1alpha1.DependantRef {
	return v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name}
}

// watched is a cluster with two zones and the dependants of the Dependency Watchdog's example.
func watched(status v1alpha1.WatchedClusterStatus) *v1alpha1.WatchedCluster {
	level := func(n int32) *v1alpha1.ScaleInfo { return &v1alpha1.ScaleInfo{Level: n} }
	delayed := level(1)
	delayed.InitialDelay = &metav1.Duration{Duration: 30 * time.Second}
	status.Counts = []v1alpha1.NodeCount{{Nodes: 5, Silent: 3, Unheard: 1}, {Zone: "a", Nodes: 3, Silent: 3}, {Zone: "b", Nodes: 2, Unheard: 1}}
	return &v1alpha1.WatchedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shoot--a--b", Name: "config"}, Status: status,
		Spec: v1alpha1.WatchedClusterSpec{KubeconfigSecretName: "probe", Dependants: []v1alpha1.WatchedDependant{
			{Ref: ref("kcm"), ScaleUp: level(0), ScaleDown: level(1)},
			{Ref: ref("mcm"), ScaleUp: delayed, ScaleDown: level(0)},
			{Ref: ref("ca"), Optional: true, ScaleUp: level(2), ScaleDown: level(0)},
		}},
	}
}

func TestExplain(t *testing.T) {
	since := metav1.NewTime(time.Now().Add(-5 * time.Minute))
	protected := map[string]string{scale.AnnotationReplicas: "2", scale.AnnotationProtected: ""}
	accepted := []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue}, {Type: "Probed", Status: metav1.ConditionFalse, Message: "ask the API server: timeout"}}
	refused := watched(v1alpha1.WatchedClusterStatus{})
	refused.Spec.Dependants[0].ScaleUp.Level = -1
	paused := watched(v1alpha1.WatchedClusterStatus{Verdict: "lost", Cause: "all"})
	paused.Spec.Paused = true
	tests := map[string]struct {
		cluster *v1alpha1.WatchedCluster
		objects dependants
		want    string
	}{
		"lost": {
			watched(v1alpha1.WatchedClusterStatus{
				Verdict: "lost", Cause: "one-zone", Since: &since, LostSince: &since,
				Zones: []v1alpha1.WatchedZone{{Name: "a", Verdict: "lost", Cause: "one-zone"}},
				Steps: []v1alpha1.ScaleStep{{Ref: ref("ca"), State: "Lowered", Replicas: 1}},
			}),
			dependants{"kcm": {Replicas: 2}, "mcm": {Replicas: 1}, "ca": {Annotations: protected}},
			`cluster: shoot--a--b/config
nodes: lost (one-zone) for 5m
why: 3 of 5 nodes have not renewed their leases for 30s, and 1 have not renewed them since the leader started, although the API server answers: the loss begins at 60 %, and ends when fewer than 40 % are silent for 30s, in at least 3 probes in a row
lost: for 5m
next: dependants are scaled down, level by level

ZONE NODES SILENT UNHEARD VERDICT CAUSE
(all) 5 3 1 lost one-zone
a 3 3 0 lost one-zone
b 2 0 1 seen -

DEPENDANT LEVEL REPLICAS STEP NEXT
Deployment/mcm 0 1 - scale-down
Deployment/ca 0 0 Lowered nothing
replicas before: 1
Deployment/kcm 1 2 - scale-down
waits for Deployment/mcm
`,
		},
		"seen": {
			watched(v1alpha1.WatchedClusterStatus{Verdict: "seen", Steps: []v1alpha1.ScaleStep{
				{Ref: ref("mcm"), State: "Lowered", Replicas: 1}, {Ref: ref("kcm"), State: "Lowered", Replicas: 2}, {Ref: ref("old"), State: "Lowered", Replicas: 4},
			}}),
			dependants{"kcm": {Annotations: protected}, "mcm": {Annotations: protected}, "ca": {Replicas: 1, Annotations: map[string]string{scale.AnnotationIgnore: "true"}}, "old": {Replicas: 5, Annotations: protected}},
			`cluster: shoot--a--b/config
nodes: seen
why: 3 of 5 nodes have not renewed their leases for 30s, and 1 have not renewed them since the leader started: a loss begins at 60 %
next: dependants that are scaled down are scaled up, level by level

ZONE NODES SILENT UNHEARD VERDICT CAUSE
(all) 5 3 1 seen -
a 3 3 0 seen -
b 2 0 1 seen -

DEPENDANT LEVEL REPLICAS STEP NEXT
Deployment/kcm 0 0 Lowered scale-up
replicas before: 2
Deployment/old 0 5 Lowered keep
replicas before: 4
Deployment/mcm 1 0 Lowered scale-up
replicas before: 1
waits for Deployment/kcm, Deployment/old
after a delay of 30s
Deployment/ca 2 1 - nothing
never scaled: dependency-watchdog.gardener.cloud/ignore-scaling
`,
		},
		"API server away": {
			watched(v1alpha1.WatchedClusterStatus{Verdict: "unknown", Cause: "api-server-away", LostSince: &since, Conditions: accepted}),
			dependants{"mcm": {Replicas: 1}},
			`cluster: shoot--a--b/config
nodes: unknown (api-server-away)
why: the API server does not respond, so silent nodes prove nothing
lost: for 5m
probe: ask the API server: timeout
next: nothing is scaled until a probe finds the state of the nodes

ZONE NODES SILENT UNHEARD VERDICT CAUSE
(all) 5 3 1 unknown api-server-away
a 3 3 0 seen -
b 2 0 1 seen -

DEPENDANT LEVEL REPLICAS STEP NEXT
Deployment/kcm 0 - - nothing
not found
Deployment/mcm 1 1 - nothing
Deployment/ca 2 - - nothing
not found
`,
		},
		"lost, one is missing": {
			watched(v1alpha1.WatchedClusterStatus{Verdict: "lost", Cause: "all"}),
			dependants{"kcm": {Replicas: 2}},
			`cluster: shoot--a--b/config
nodes: lost (all)
why: 3 of 5 nodes have not renewed their leases for 30s, and 1 have not renewed them since the leader started, although the API server answers: the loss begins at 60 %, and ends when fewer than 40 % are silent for 30s, in at least 3 probes in a row
next: dependants are scaled down, level by level

ZONE NODES SILENT UNHEARD VERDICT CAUSE
(all) 5 3 1 lost all
a 3 3 0 seen -
b 2 0 1 seen -

DEPENDANT LEVEL REPLICAS STEP NEXT
Deployment/mcm 0 - - fail
not found
Deployment/ca 0 - - nothing
not found
Deployment/kcm 1 2 - scale-down
waits for Deployment/mcm
`,
		},
		"paused": {
			paused, dependants{"kcm": {Replicas: 2}, "mcm": {Replicas: 1}, "ca": {Replicas: 1}},
			`cluster: shoot--a--b/config
nodes: lost (all)
why: 3 of 5 nodes have not renewed their leases for 30s, and 1 have not renewed them since the leader started, although the API server answers: the loss begins at 60 %, and ends when fewer than 40 % are silent for 30s, in at least 3 probes in a row
paused: yes
next: nothing is scaled: the cluster is paused

ZONE NODES SILENT UNHEARD VERDICT CAUSE
(all) 5 3 1 lost all
a 3 3 0 seen -
b 2 0 1 seen -

DEPENDANT LEVEL REPLICAS STEP NEXT
Deployment/kcm 0 2 - nothing
Deployment/mcm 1 1 - nothing
Deployment/ca 2 1 - nothing
`,
		},
		"not valid": {
			refused, nil,
			`cluster: shoot--a--b/config
nodes: none
why: the object is invalid
refused: spec.dependants[0].scaleUp.level: -1: must be 0 or more
next: nothing, or the actions of the last valid object

ZONE NODES SILENT UNHEARD VERDICT CAUSE
(all) 5 3 1 - -
a 3 3 0 seen -
b 2 0 1 seen -
`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := Explain(t.Context(), tc.cluster, tc.objects)
			var out printer.Output
			e.write(&out)
			var got strings.Builder
			for line := range strings.Lines(out.String()) { // columns are the printer's
				got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
			}
			if d := cmp.Diff(tc.want, got.String()); d != "" {
				t.Errorf("%s\n%s", d, &out)
			}
			out.Reset()
			if err := printer.WriteJSON(&out, e); err != nil {
				t.Fatal(err)
			}
			var again Explanation
			if err := json.Unmarshal(out.Bytes(), &again); err != nil || again.Why != e.Why || len(again.Dependants) != len(e.Dependants) {
				t.Errorf("%v in %s", err, &out)
			}
		})
	}
}

// Each cause of an unknown state has its own text.
func TestWhyUnknown(t *testing.T) {
	for cause, want := range map[string]string{
		"unheard": "it may or may not be one", "throttled": "throttles requests", "api-server-away": "does not respond", "unreadable": "cannot be read",
	} {
		e := Explain(t.Context(), watched(v1alpha1.WatchedClusterStatus{Verdict: "unknown", Cause: cause}), dependants{})
		if !strings.Contains(e.Why, want) || !strings.Contains(e.Next, "until a probe finds") {
			t.Errorf("%s: %+v", cause, e)
		}
	}
}
