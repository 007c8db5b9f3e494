package admission_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/chart"
)

// conditionPolicy returns the validations of the policy that limits the control plane to one condition of pods, as
// the first API server with policies reads them.
func conditionPolicy(t *testing.T) cel.ConditionEvaluator {
	t.Helper()
	return policyOf(t, "sonde-liveness-held")
}

// policyOf returns the validations of a policy of the chart.
func policyOf(t *testing.T, name string, flags ...string) cel.ConditionEvaluator {
	t.Helper()
	manifests, err := chart.Render(t.Context(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	var policy admissionregistration.ValidatingAdmissionPolicy
	for _, m := range manifests {
		if m.Kind == "ValidatingAdmissionPolicy" && m.Name == name {
			if err := m.Decode(&policy); err != nil {
				t.Fatal(err)
			}
		}
	}
	var conditions []cel.ExpressionAccessor
	for _, v := range policy.Spec.Validations {
		conditions = append(conditions, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message})
	}
	if len(conditions) == 0 {
		t.Fatal("the chart has no policy with validations")
	}
	return cel.NewConditionCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 30))).CompileCondition(conditions, cel.OptionalVariableDeclarations{}, environment.StoredExpressions)
}

// allows returns "" if a policy allows the update between two objects, else the reason.
func allows(t *testing.T, policy cel.ConditionEvaluator, from, to map[string]any) string {
	t.Helper()
	return allowsRequest(t, policy, "Pod", "pods", from, to, &admissionv1.AdmissionRequest{})
}

// allowsRequest is allows for an object of another kind, and a request.
func allowsRequest(t *testing.T, policy cel.ConditionEvaluator, ofKind, ofResource string, from, to map[string]any, request *admissionv1.AdmissionRequest) string {
	t.Helper()
	kind, resource := corev1.SchemeGroupVersion.WithKind(ofKind), corev1.SchemeGroupVersion.WithResource(ofResource)
	was, is := &unstructured.Unstructured{Object: from}, &unstructured.Unstructured{Object: to}
	attributes := &admission.VersionedAttributes{
		Attributes:    admission.NewAttributesRecord(is, was, kind, "shop", "web", resource, "status", admission.Update, nil, false, nil),
		VersionedKind: kind, VersionedObject: admission.NewLazyObject(is), VersionedOldObject: admission.NewLazyObject(was),
	}
	results, _, err := policy.ForInput(t.Context(), attributes, request, cel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return err.Error()
	}
	for _, r := range results {
		if r.Error != nil {
			return r.Error.Error()
		}
		if allowed, ok := r.EvalResult.Value().(bool); !ok || !allowed {
			return r.ExpressionAccessor.(*validating.ValidationCondition).Message
		}
	}
	return ""
}

// fill sets a value and all its parts to non-zero values.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8:
		v.SetUint(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if fillText(v) {
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	default:
		panic("no value for " + v.Type().String())
	}
}

// fillText sets a struct that is a string or number in JSON, such as a time, and returns whether it is one.
func fillText(v reflect.Value) bool {
	if !v.CanAddr() {
		return false
	}
	unmarshaler, ok := reflect.TypeAssert[json.Unmarshaler](v.Addr())
	return ok && (unmarshaler.UnmarshalJSON([]byte(`"2026-01-02T03:04:05Z"`)) == nil || unmarshaler.UnmarshalJSON([]byte(`"7"`)) == nil)
}

// filled returns an object of a type with all fields set, as JSON of an API server.
func filled[T any](t *testing.T) map[string]any {
	t.Helper()
	var all T
	fill(reflect.ValueOf(&all).Elem())
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&all)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// The control plane may change its condition, and no other field of a pod's metadata and status, including fields of
// later Kubernetes versions.
func TestConditionPolicyClosesEachField(t *testing.T) {
	policy := conditionPolicy(t)
	of := func(status, metadata map[string]any) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
	}
	without := func(object map[string]any, key string) map[string]any {
		less := maps.Clone(object)
		delete(less, key)
		return less
	}
	with := func(object map[string]any, key string, value any) map[string]any {
		more := maps.Clone(object)
		more[key] = value
		return more
	}
	status, metadata := filled[corev1.PodStatus](t), filled[corev1.Pod](t)["metadata"].(map[string]any)
	if fields := reflect.TypeFor[corev1.PodStatus]().NumField(); len(status) != fields {
		t.Fatalf("%d fields of %d are set", len(status), fields)
	}
	whole := of(status, metadata)
	refused := func(name, want string, from, to map[string]any) {
		t.Helper()
		if why := allows(t, policy, from, to); !strings.Contains(why, want) {
			t.Errorf("%s: %q, want a refusal: %s", name, why, want)
		}
	}
	for key := range with(status, "fieldOfALaterRelease", "x") {
		want := "may only change a condition in the status of pods"
		if key == "conditions" {
			want = "may only change the condition sonde.dev/LivenessHeld"
		}
		refused("status."+key+" is added", want, of(without(status, key), metadata), of(with(status, key, status[key]), metadata))
		refused("status."+key+" is removed", want, of(with(status, key, status[key]), metadata), of(without(status, key), metadata))
		if key != "conditions" {
			refused("status."+key+" is changed", want, whole, of(with(status, key, "other"), metadata))
		}
	}
	for key := range with(metadata, "fieldOfALaterRelease", "x") {
		if key == "managedFields" { // the API server writes it
			continue
		}
		const want = "must not change the metadata of pods"
		refused("metadata."+key+" is added", want, of(status, without(metadata, key)), of(status, with(metadata, key, metadata[key])))
		refused("metadata."+key+" is removed", want, of(status, with(metadata, key, metadata[key])), of(status, without(metadata, key)))
		refused("metadata."+key+" is changed", want, whole, of(status, with(metadata, key, "other")))
	}
	own := map[string]any{"type": mesh.ConditionLivenessHeld, "status": "True"}
	others := status["conditions"].([]any)
	for name, change := range map[string][2][]any{
		"added": {others, append(others[:1:1], own)}, "removed": {append(others[:1:1], own), others}, "first": {nil, {own}},
		"changed": {append(others[:1:1], own), append(others[:1:1], with(own, "status", "False"))},
	} {
		from, to := of(with(status, "conditions", change[0]), metadata), of(with(status, "conditions", change[1]), with(metadata, "managedFields", "other"))
		if change[0] == nil {
			from = of(without(status, "conditions"), metadata)
		}
		if why := allows(t, policy, from, to); why != "" {
			t.Errorf("its condition is %s: %s", name, why)
		}
	}
}

// A pod with very many containers does not exceed the API server's cost limit of a policy.
func TestConditionPolicyOfALargePod(t *testing.T) {
	policy := conditionPolicy(t)
	status := filled[corev1.PodStatus](t)
	container := status["containerStatuses"].([]any)[0]
	var many []any
	for range 300 {
		many = append(many, container)
	}
	status["containerStatuses"] = many
	from := map[string]any{"metadata": filled[corev1.Pod](t)["metadata"], "status": status}
	if why := allows(t, policy, from, runtime.DeepCopyJSON(from)); why != "" {
		t.Error(why)
	}
}
