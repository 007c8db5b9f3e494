package config

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/partition"
)

// form names the fields of a spec like its source.
type form struct {
	kubeconfig, settings, dependants string
	// mustHaveSecret means that the cluster is only reachable by a Secret.
	mustHaveSecret bool
}

var (
	ofObject = form{kubeconfig: "spec.kubeconfigSecretName", settings: "spec.settings.", dependants: "spec.dependants"}
	ofFile   = form{kubeconfig: "kubeConfigSecretName", settings: "", dependants: "dependentResourceInfos",
		mustHaveSecret: true}
)

// Limits of a spec. The CustomResourceDefinition has the same limits for numbers.
const (
	minInterval   = 100 * time.Millisecond
	maxDuration   = time.Hour
	maxJitter     = 10
	maxDependants = 32
)

// validator collects errors.
type validator struct {
	form
	errs []error
}

func validate(spec *v1alpha1.WatchedClusterSpec, namespace string, self Self, f form) error {
	v := &validator{form: f}
	v.reach(spec)
	v.times(&spec.Settings)
	v.fractions(&spec.Settings)
	if n := len(spec.Dependants); n == 0 {
		v.refuse(v.dependants, "", "must have at least one dependant to scale")
	} else if n > maxDependants {
		v.refuseNumber(v.dependants, strconv.Itoa(n), "must be at most "+strconv.Itoa(maxDependants))
	}
	seen := map[schema.GroupKind]map[string]string{}
	for i := range spec.Dependants {
		v.dependant(&spec.Dependants[i], v.dependants+"["+strconv.Itoa(i)+"]", seen, namespace, self)
	}
	return errors.Join(v.errs...)
}

func (v *validator) refuse(field, value, allowed string) {
	v.errs = append(v.errs, &mesh.FieldError{Field: field, Value: value, Allowed: allowed})
}

// refuseNumber is refuse for a value that is not text.
func (v *validator) refuseNumber(field, value, allowed string) {
	v.errs = append(v.errs, &mesh.FieldError{Field: field, Value: value, Bare: true, Allowed: allowed})
}

func (v *validator) reach(spec *v1alpha1.WatchedClusterSpec) {
	name := spec.KubeconfigSecretName
	switch {
	case spec.Local && name != "" && !v.mustHaveSecret:
		v.refuse(v.kubeconfig, name, "must not be given with local: true")
	case spec.Local: // a file has the flag for the local cluster instead
	case name == "" && v.mustHaveSecret:
		v.refuse(v.kubeconfig, "", "is required: the name of the Secret with the kubeconfig")
	case name == "":
		v.refuse(v.kubeconfig, "", "is required without local: true")
	default:
		v.name(v.kubeconfig, name)
	}
}

func (v *validator) name(field, name string) {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		v.refuse(field, name, "must be the name of an object: "+problems[0])
	}
}

func (v *validator) times(s *v1alpha1.WatchSettings) {
	for _, d := range []struct {
		name  string
		value *metav1.Duration
		least time.Duration
	}{
		{"probeInterval", s.ProbeInterval, minInterval},
		{"initialDelay", s.InitialDelay, 0},
		{"probeTimeout", s.ProbeTimeout, time.Millisecond},
		{"backOffDurationForThrottledRequests", s.BackOffDurationForThrottledRequests, time.Millisecond},
		{"kcmNodeMonitorGraceDuration", s.KCMNodeMonitorGraceDuration, time.Millisecond},
	} {
		v.duration(v.settings+d.name, d.value, d.least)
	}
}

func (v *validator) duration(field string, d *metav1.Duration, least time.Duration) {
	if d != nil && (d.Duration < least || d.Duration > maxDuration) {
		v.refuse(field, d.Duration.String(), fmt.Sprintf("must be from %s to %s", least, maxDuration))
	}
}

func (v *validator) fractions(s *v1alpha1.WatchSettings) {
	const isFraction = "must be more than 0 and at most 1"
	check := func(name string, value *float64) {
		if value != nil && !(*value > 0 && *value <= 1) { // also false for NaN
			v.refuseNumber(v.settings+name, number(*value), isFraction)
		}
	}
	check("leaseExpiryFraction", s.LeaseExpiryFraction)
	check("nodeLeaseFailureFraction", s.NodeLeaseFailureFraction)
	check("nodeLeaseRecoveryFraction", s.NodeLeaseRecoveryFraction)
	enter := valueOr(s.NodeLeaseFailureFraction, partition.DefaultEnter)
	if leave := s.NodeLeaseRecoveryFraction; leave != nil && *leave > enter {
		v.refuseNumber(v.settings+"nodeLeaseRecoveryFraction", number(*leave),
			"must be at most nodeLeaseFailureFraction, "+number(enter))
	}
	if jitter := s.BackoffJitterFactor; jitter != nil && !(*jitter >= 0 && *jitter <= maxJitter) {
		v.refuseNumber(v.settings+"backoffJitterFactor", number(*jitter), fmt.Sprintf("must be from 0 to %d", maxJitter))
	}
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// dependant checks one dependant. seen has the fields of previous dependants.
func (v *validator) dependant(
	d *v1alpha1.WatchedDependant, field string, seen map[schema.GroupKind]map[string]string, namespace string, self Self,
) {
	ref := d.Ref
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || version.Version == "" {
		v.refuse(field+".ref.apiVersion", ref.APIVersion, "must be the version of a kind, such as apps/v1")
	}
	if ref.Kind == "" {
		v.refuse(field+".ref.kind", "", "is required: a kind with a scale subresource, such as Deployment")
	}
	v.name(field+".ref.name", ref.Name)
	kind := schema.GroupKind{Group: version.Group, Kind: ref.Kind}
	if kind == (schema.GroupKind{Group: "apps", Kind: "Deployment"}) && (Self{namespace, ref.Name}) == self {
		v.refuse(field+".ref.name", ref.Name, "must not be the watchdog itself, which could not scale itself up again")
	}
	if seen[kind] == nil {
		seen[kind] = map[string]string{}
	}
	if first, twice := seen[kind][ref.Name]; twice {
		v.refuse(field+".ref.name", ref.Name, "must be given once: it is "+first+" already")
	} else {
		seen[kind][ref.Name] = field
	}
	v.scaling(field+".scaleUp", d.ScaleUp)
	v.scaling(field+".scaleDown", d.ScaleDown)
}

func (v *validator) scaling(field string, s *v1alpha1.ScaleInfo) {
	if s == nil {
		v.refuse(field, "", "is required, with a level")
		return
	}
	if s.Level < 0 {
		v.refuseNumber(field+".level", strconv.Itoa(int(s.Level)), "must be 0 or more")
	}
	v.duration(field+".initialDelay", s.InitialDelay, 0)
	v.duration(field+".timeout", s.Timeout, time.Millisecond)
}
