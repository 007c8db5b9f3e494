package webhook_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// The agent has the setting of held failures before its first session. An injected pod keeps its argument, since its
// agent gets changes in the session.
func TestHold(t *testing.T) {
	const argument = "--liveness-hold=warning"
	has := func(o webhook.Options) bool {
		pod, _ := inject(t, parse(`spec: {containers: [{name: web, livenessProbe: {tcpSocket: {port: 80}}}]}`), o)
		return slices.Contains(sidecarOf(t, pod).Args, argument)
	}
	if has(webhook.Options{}) || has(webhook.Options{Hold: mesh.HoldErrored}) || !has(webhook.Options{Hold: mesh.HoldWarning}) {
		t.Errorf("a sidecar has %s with another setting, or lacks it", argument)
	}
	o, hold := enabled().options(), mesh.HoldErrored
	o.Hold = func() mesh.LivenessHold { return hold }
	s := newServer(t, o)
	for _, hold = range []mesh.LivenessHold{mesh.HoldErrored, mesh.HoldWarning} {
		answer := review(t, s, webhook.PathInject, podReview("shop", toJSON(t, "{metadata: {name: web}, spec: {containers: [{name: app}]}}")))
		if is := bytes.Contains(answer.Patch, []byte(argument)); is != (hold == mesh.HoldWarning) {
			t.Errorf("%s: the patch has %s: %t", hold, argument, is)
		}
	}
	again, _ := inject(t, injectedApp(t, webhook.Native), webhook.Options{Hold: mesh.HoldWarning})
	if slices.Contains(sidecarOf(t, again).Args, argument) {
		t.Errorf("a sidecar that was there has %s", argument)
	}
}
