package cni

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestCondition(t *testing.T) {
	tests := map[string]struct {
		why   error
		after []string
		want  corev1.NodeCondition
	}{
		"installed": {
			want: corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: "Installed", Message: "the CNI configuration calls the plugin"},
		},
		"other plugins run later": {
			after: []string{"tuning", "istio-cni"},
			want:  corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: mesh.ReasonPluginsAfter, Message: "tuning, istio-cni"},
		},
		"not installed": {
			why: errors.New("/etc/cni/net.d: no CNI configuration found"), after: []string{"tuning"},
			want: corev1.NodeCondition{Status: corev1.ConditionFalse, Reason: "NotInstalled", Message: "/etc/cni/net.d: no CNI configuration found"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.want.Type = mesh.ConditionCNIReady
			if got := condition(tc.why, tc.after); got != tc.want {
				t.Errorf("condition() = %+v, want %+v", got, tc.want)
			}
		})
	}
	if got := condition(nil, []string{strings.Repeat("x", 1<<20)}); len(got.Message) > maxConditionMessage+len("…") {
		t.Errorf("the message has %d bytes, want at most %d", len(got.Message), maxConditionMessage)
	}
}

// Another reason is no transition.
func TestTimesOfTheCondition(t *testing.T) {
	first, later := metav1.Unix(100, 0), metav1.Unix(200, 0)
	written := timed(condition(nil, nil), corev1.NodeCondition{}, first)
	if written.LastTransitionTime != first {
		t.Errorf("the first condition has the transition time %s, want %s", written.LastTransitionTime, first)
	}
	same := condition(nil, nil)
	if !sameAs(same, written) {
		t.Error("a condition differs by its times alone")
	}
	if c := timed(condition(nil, []string{"tuning"}), written, later); sameAs(c, written) || c.LastTransitionTime != first || c.LastHeartbeatTime != later {
		t.Errorf("with another reason: transition at %s, heartbeat at %s, want %s and %s", c.LastTransitionTime, c.LastHeartbeatTime, first, later)
	}
	if c := timed(condition(errors.New("gone"), nil), written, later); c.LastTransitionTime != later {
		t.Errorf("with another status: transition at %s, want %s", c.LastTransitionTime, later)
	}
}
