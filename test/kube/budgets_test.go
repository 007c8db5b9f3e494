package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// restartBudget returns a manifest of a RestartBudget.
func restartBudget(name, spec string) string {
	return fmt.Sprintf("{apiVersion: sonde.dev/v1alpha1, kind: RestartBudget, metadata: {name: %s}, spec: %s}", name, spec)
}

// What a RestartBudget cannot be is refused when it is written, with the field, its value and what is allowed.
func TestBadRestartBudgets(t *testing.T) {
	namespace(t, newClient(t), "bad-budgets", nil)
	const (
		amount   = `must be a number of pods from 0 to 1000000, or a share from \"0%\" to \"100%\"`
		duration = "must be a duration from 1m to 24h, such as 5m or 1h30m"
		one      = "at least one of maxUnavailable, minAvailable, perMinute and whenAway is required"
	)
	tests := map[string]struct{ spec, want string }{
		"a number":               {"{selector: {}, maxUnavailable: 2}", ""},
		"0":                      {"{selector: {}, maxUnavailable: 0}", ""},
		"a share":                {`{selector: {matchLabels: {app: web, empty: ""}}, maxUnavailable: 25%}`, ""},
		"0 %":                    {"{selector: {}, maxUnavailable: 0%}", ""},
		"100 %":                  {"{selector: {}, minAvailable: 100%}", ""},
		"minAvailable":           {"{selector: {}, minAvailable: 3}", ""},
		"perMinute alone":        {"{selector: {}, perMinute: 1}", ""},
		"hold alone":             {"{selector: {}, whenAway: hold}", ""},
		"slots":                  {"{selector: {}, maxUnavailable: 1, whenAway: slots}", ""},
		"native":                 {"{selector: {}, whenAway: native, nativeAfter: 1h30m}", ""},
		"native after a minute":  {"{selector: {}, whenAway: native, nativeAfter: 60s}", ""},
		"native after a day":     {"{selector: {}, whenAway: native, nativeAfter: 24h}", ""},
		"all operators":          {"{selector: {matchExpressions: [{key: a, operator: In, values: [b]}, {key: a, operator: NotIn, values: [c]}, {key: a, operator: Exists}, {key: d, operator: DoesNotExist}]}, perMinute: 1}", ""},
		"no spec":                {"null", "spec: Required value"},
		"no selector":            {"{maxUnavailable: 1}", "spec.selector: Required value"},
		"a selector of null":     {"{selector: null, maxUnavailable: 1}", "spec.selector: Required value"},
		"a list for a selector":  {"{selector: [], maxUnavailable: 1}", "spec.selector in body must be of type object"},
		"an unknown operator":    {"{selector: {matchExpressions: [{key: a, operator: Is, values: [b]}]}, maxUnavailable: 1}", "matchExpressions: operator must be In or NotIn, with values, or Exists or DoesNotExist, without"},
		"In nothing":             {"{selector: {matchExpressions: [{key: a, operator: In}]}, maxUnavailable: 1}", "matchExpressions: operator must be In or NotIn, with values"},
		"Exists with a value":    {"{selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}, maxUnavailable: 1}", "Exists or DoesNotExist, without"},
		"nothing":                {"{selector: {}}", "spec: Invalid value: " + one},
		"both":                   {"{selector: {}, maxUnavailable: 1, minAvailable: 1}", "maxUnavailable and minAvailable: only one of them is allowed"},
		"a negative number":      {"{selector: {}, maxUnavailable: -1}", "spec.maxUnavailable: Invalid value: -1: " + amount},
		"a number that is large": {"{selector: {}, minAvailable: 10000000000}", "spec.minAvailable: Invalid value: 10000000000: " + amount},
		"101 %":                  {"{selector: {}, maxUnavailable: 101%}", `spec.maxUnavailable: Invalid value: \"101%\": ` + amount},
		"999 %":                  {"{selector: {}, minAvailable: 999%}", `spec.minAvailable: Invalid value: \"999%\": ` + amount},
		"a negative share":       {`{selector: {}, minAvailable: "-1%"}`, `spec.minAvailable: Invalid value: \"-1%\": ` + amount},
		"a fraction":             {"{selector: {}, maxUnavailable: 12.5%}", `spec.maxUnavailable: Invalid value: \"12.5%\": ` + amount},
		"a number as a text":     {`{selector: {}, maxUnavailable: "3"}`, `spec.maxUnavailable: Invalid value: \"3\": ` + amount},
		"a fraction of a pod":    {"{selector: {}, maxUnavailable: 1.5}", "spec.maxUnavailable"},
		"an empty text":          {`{selector: {}, maxUnavailable: ""}`, `spec.maxUnavailable: Invalid value: \"\": ` + amount},
		"perMinute 0":            {"{selector: {}, perMinute: 0}", "spec.perMinute in body should be greater than or equal to 1"},
		"a perMinute of text":    {`{selector: {}, perMinute: "1"}`, "spec.perMinute in body must be of type integer"},
		"an unknown whenAway":    {"{selector: {}, whenAway: restart}", `spec.whenAway: Unsupported value: \"restart\": supported values: \"hold\", \"slots\", \"native\"`},
		"an empty whenAway":      {`{selector: {}, whenAway: ""}`, "spec.whenAway: Unsupported value"},
		"native at once":         {"{selector: {}, whenAway: native}", "nativeAfter is required with whenAway native: a duration from 1m to 24h"},
		"slots with nativeAfter": {"{selector: {}, whenAway: slots, nativeAfter: 5m}", "nativeAfter is allowed only with whenAway native"},
		"nativeAfter alone":      {"{selector: {}, maxUnavailable: 1, nativeAfter: 5m}", "nativeAfter is allowed only with whenAway native"},
		"after seconds":          {"{selector: {}, whenAway: native, nativeAfter: 59s}", `spec.nativeAfter: Invalid value: \"59s\": ` + duration},
		"after more than a day":  {"{selector: {}, whenAway: native, nativeAfter: 24h1s}", `spec.nativeAfter: Invalid value: \"24h1s\": ` + duration},
		"a number for a time":    {"{selector: {}, whenAway: native, nativeAfter: 300}", "spec.nativeAfter in body must be of type string"},
		"no time":                {`{selector: {}, whenAway: native, nativeAfter: ""}`, `spec.nativeAfter: Invalid value: \"\": ` + duration},
		"no unit":                {`{selector: {}, whenAway: native, nativeAfter: "300"}`, `spec.nativeAfter: Invalid value: \"300\": ` + duration},
		"an unknown field":       {"{selector: {}, maxUnavailable: 1, maxunavailable: 1}", `unknown field \"spec.maxunavailable\"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := cluster.Do(t.Context(), http.MethodPost, sondePath("bad-budgets", "restartbudgets")+"?fieldValidation=Strict&dryRun=All", "application/yaml", restartBudget("test", tc.spec))
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}

// Of two budgets of a pod the strictest holds, and their status says what is held, and what restarts.
func TestRestartBudgets(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "budgets", nil)
	p := startPlane(t, "a")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	budgets := sondePath("budgets", "restartbudgets")
	apply(t, "budgets", "restartbudgets", restartBudget("one", "{selector: {matchLabels: {kuma.io/mesh: default}}, maxUnavailable: 1, whenAway: native, nativeAfter: 5m}"))
	apply(t, "budgets", "restartbudgets", restartBudget("none", "{selector: {}, minAvailable: 100%, whenAway: slots}"))
	apply(t, "budgets", "restartbudgets", restartBudget("other", "{selector: {matchLabels: {app: other}}, maxUnavailable: 1}"))
	for _, name := range []string{"one", "none", "other"} {
		accepted(t, budgets+"/"+name, "True", "NoPods", "it selects no guarded pod")
	}

	stream, send := newGuardedSession(t, client, p, "budgets")
	send(&agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Container: "app", Reason: "refused"}}})
	accepted(t, budgets+"/none", "True", "Overlapping", "are selected by one")
	accepted(t, budgets+"/one", "True", "Overlapping", "are selected by none")
	counts(t, budgets+"/one", 1, 0, 1)
	counts(t, budgets+"/none", 1, 0, 1)
	counts(t, budgets+"/other", 0, 0, 0)
	text, err := cluster.Do(t.Context(), http.MethodGet, sondePath("budgets", "restartgrants"), "", "")
	if err != nil || !strings.Contains(text, `"items":[]`) {
		t.Fatalf("grants while the strictest budget allows none: %s, error %v", text, err)
	}

	if _, err := cluster.Do(t.Context(), http.MethodDelete, budgets+"/none", "", ""); err != nil {
		t.Fatal(err)
	}
	var restarts *agentv1.Restarts
	for len(restarts.GetGrants()) == 0 || restarts.GetWhenAway().GetPolicy() != agentv1.WhenAway_NATIVE {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r := m.GetRestarts(); r != nil {
			restarts = r
		}
	}
	if after := restarts.GetWhenAway().GetAfter().AsDuration(); after != 5*time.Minute {
		t.Errorf("the agent is told of native after %v, want 5m", after)
	}
	counts(t, budgets+"/one", 1, 1, 0)
	accepted(t, budgets+"/one", "True", "Accepted", `"observedGeneration":1`)
}

// counts waits until the status of a RestartBudget has these numbers.
func counts(t *testing.T, path string, matched, inProgress, held int32) {
	t.Helper()
	poll(t, "the status of "+path, func(ctx context.Context) error {
		text, err := cluster.Do(ctx, http.MethodGet, path, "", "")
		if err != nil {
			return err
		}
		var b v1alpha1.RestartBudget
		if err := yaml.Unmarshal([]byte(text), &b); err != nil {
			return err
		}
		if s := b.Status; s.Matched != matched || s.InProgress != inProgress || s.Held != held {
			return fmt.Errorf("status %+v, want %d matched, %d in progress, %d held", s, matched, inProgress, held)
		}
		return nil
	})
}
