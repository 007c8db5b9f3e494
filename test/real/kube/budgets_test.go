package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/test/must"
)

// restartBudget returns a manifest of a RestartBudget.
func restartBudget(name, spec string) string {
	return fmt.Sprintf("{apiVersion: sonde.dev/v1alpha1, kind: RestartBudget, metadata: {name: %s}, spec: %s}", name, spec)
}

// The API server rejects an invalid RestartBudget with the field, its value and the allowed values.
func TestBadRestartBudgets(t *testing.T) {
	namespace(t, newClient(t), "bad-budgets", nil)
	const (
		amount   = `must be a number of pods from 0 to 1000000, or a share from \"0%\" to \"100%\"`
		duration = "must be a duration from 1m to 24h, such as 5m or 1h30m"
		one      = "at least one of maxUnavailable, minAvailable, perMinute and whenAway is required"
	)
	labels := func(n, length int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("k%02d: %s", i, strings.Repeat("v", length)))
		}
		return "{selector: {matchLabels: {" + strings.Join(all, ", ") + "}}, maxUnavailable: 1}"
	}
	expressions := func(n, values int) string {
		e := "{key: k, operator: In, values: [" + strings.TrimSuffix(strings.Repeat("v, ", values), ", ") + "]}"
		return "{selector: {matchExpressions: [" + strings.TrimSuffix(strings.Repeat(e+", ", n), ", ") + "]}, maxUnavailable: 1}"
	}
	long := fmt.Sprintf("{selector: {matchExpressions: [{key: k, operator: In, values: [%s]}]}, maxUnavailable: 1}", strings.TrimSuffix(strings.Repeat(strings.Repeat("v", 63)+", ", 64), ", "))
	tests := map[string]struct{ spec, want string }{
		"the most labels":        {labels(16, 63), ""},
		"too many labels":        {labels(17, 1), "spec.selector.matchLabels: Too many: 17: must have at most 16 items"},
		"a long value":           {labels(1, 64), "spec.selector.matchLabels.k00: Too long: may not be more than 63 bytes"},
		"the most expressions":   {expressions(16, 4), ""},
		"too many expressions":   {expressions(17, 1), "spec.selector.matchExpressions: Too many: 17: must have at most 16 items"},
		"the most values":        {expressions(1, 64), ""},
		"too many values":        {expressions(1, 65), "spec.selector.matchExpressions[0].values: Too many: 65: must have at most 64 items"},
		"too many values in sum": {expressions(5, 13), "matchExpressions: at most 64 values are allowed in sum"},
		"nearly too many bytes":  {long, ""},
		"too many bytes":         {strings.Replace(long, "{matchExpressions", "{matchLabels: {"+strings.Repeat("k", 63)+": v}, matchExpressions", 1), "all keys and values may have 4096 bytes in sum"},
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
		"a large number":         {"{selector: {}, minAvailable: 10000000000}", "spec.minAvailable: Invalid value: 10000000000: " + amount},
		"101 %":                  {"{selector: {}, maxUnavailable: 101%}", `spec.maxUnavailable: Invalid value: \"101%\": ` + amount},
		"999 %":                  {"{selector: {}, minAvailable: 999%}", `spec.minAvailable: Invalid value: \"999%\": ` + amount},
		"a negative share":       {`{selector: {}, minAvailable: "-1%"}`, `spec.minAvailable: Invalid value: \"-1%\": ` + amount},
		"a fraction":             {"{selector: {}, maxUnavailable: 12.5%}", `spec.maxUnavailable: Invalid value: \"12.5%\": ` + amount},
		"a number as text":       {`{selector: {}, maxUnavailable: "3"}`, `spec.maxUnavailable: Invalid value: \"3\": ` + amount},
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

// If two budgets apply to a pod, the stricter one limits it. Their status shows the held and
// restarting containers.
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
		t.Errorf("the agent receives native after %v, want 5m", after)
	}
	counts(t, budgets+"/one", 1, 1, 0)
	accepted(t, budgets+"/one", "True", "Accepted", `"observedGeneration":1`)
}

// A budget that exceeds the bounds, and that an earlier release accepted, stays; its status and an event report it as
// invalid.
func TestBudgetOfAnEarlierRelease(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "early-budgets", nil)
	large := restartBudget("large", "{selector: {matchExpressions: [{key: app, operator: In, values: ["+strings.TrimSuffix(strings.Repeat("web, ", 10_000), ", ")+"]}]}, maxUnavailable: 1}")
	budgets := sondePath("early-budgets", "restartbudgets")
	create := func(ctx context.Context, query string) error {
		_, err := cluster.Do(ctx, http.MethodPost, budgets+query, "application/yaml", large)
		return err
	}
	earlierDefinition(t, "restartbudgets.sonde.dev", create, func(version map[string]any) error {
		return unstructured.SetNestedMap(version, map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			"schema", "openAPIV3Schema", "properties", "spec", "properties", "selector")
	})

	startPlane(t, "a")
	accepted(t, budgets+"/large", "False", "Invalid", "too large: 10000 values of matchExpressions, at most 64 are allowed")
	must.Poll(t, "the event", func(ctx context.Context) error {
		events, err := client.EventsV1().Events("early-budgets").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range events.Items {
			if e := &events.Items[i]; e.Reason == "RestartBudgetInvalid" && e.Regarding.Kind == "RestartBudget" && e.Regarding.Name == "large" {
				return nil
			}
		}
		return fmt.Errorf("not among %d events", len(events.Items))
	})
}

// earlierDefinition installs an earlier release's definition, made by change, and has create create an object. Then
// it restores the current definition, which would reject the object.
func earlierDefinition(t *testing.T, name string, create func(ctx context.Context, query string) error, change func(version map[string]any) error) {
	t.Helper()
	definitions := dynamicClient(t, cluster.Config).Resource(definitionsResource)
	now, err := definitions.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	versions, _, err := unstructured.NestedSlice(now.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	replaceVersions := func(versions []any) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"versions": versions}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := definitions.Patch(context.WithoutCancel(t.Context()), now.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	early := runtime.DeepCopyJSON(map[string]any{"versions": versions})["versions"].([]any)
	if err := change(early[0].(map[string]any)); err != nil {
		t.Fatal(err)
	}
	replaceVersions(early)
	t.Cleanup(func() { replaceVersions(versions) })
	must.Poll(t, "the definition of an earlier release", func(ctx context.Context) error { return create(ctx, "") })
	replaceVersions(versions)
	must.Poll(t, "the definition of now", func(ctx context.Context) error {
		if create(ctx, "?dryRun=All") == nil {
			return errors.New("an object that is too large is accepted")
		}
		return nil
	})
}

// counts waits until the status of a RestartBudget has these numbers.
func counts(t *testing.T, path string, matched, inProgress, held int32) {
	t.Helper()
	must.Poll(t, "the status of "+path, func(ctx context.Context) error {
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
