package webhook

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Resources of the sidecars of all pods, as quantities such as "250m", "" for the default. Annotations of a pod and of
// its namespace take precedence.
type Resources struct {
	CPU, CPULimit, Memory, MemoryLimit string
}

// AddFlags adds a flag for each quantity.
func (r *Resources) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&r.CPU, "sidecar-cpu", "", "CPU request `QUANTITY` of sidecars; default 50m, and 250m in pods of QoS class Guaranteed")
	flags.StringVar(&r.CPULimit, "sidecar-cpu-limit", "", "CPU limit `QUANTITY` of sidecars; default 1, and the request in pods of QoS class Guaranteed")
	flags.StringVar(&r.Memory, "sidecar-memory", "",
		"memory request `QUANTITY` of sidecars; default 64Mi, and "+sidecarMemory+" in pods of QoS class Guaranteed")
	flags.StringVar(&r.MemoryLimit, "sidecar-memory-limit", "",
		"memory limit `QUANTITY` of sidecars; default "+sidecarMemory+", and the request in pods of QoS class Guaranteed")
}

// computeResource is a resource that determines the QoS class of a pod.
type computeResource struct {
	name           corev1.ResourceName
	request, limit quantityKey
	// guaranteed is the request and limit in a pod of QoS class Guaranteed
	// (docs/decisions/041-resources-of-the-sidecar.md).
	guaranteed resource.Quantity
}

// quantityKey names the annotation and option of a quantity.
type quantityKey struct {
	annotation string
	option     string // field of Options
	standard   resource.Quantity
	least      resource.Quantity
	example    string
}

// computeResources have the minimum quantities with which Envoy and the agent start, and default requests with headroom
// for an idle proxy (docs/decisions/041-resources-of-the-sidecar.md).
var computeResources = []computeResource{
	{
		corev1.ResourceCPU,
		newKey(mesh.AnnotationSidecarCPU, "Resources.CPU", "50m", "1m", "100m or 1.5"),
		newKey(mesh.AnnotationSidecarCPULimit, "Resources.CPULimit", "1", "50m", "500m or 1.5"),
		resource.MustParse("250m"),
	},
	{
		corev1.ResourceMemory,
		newKey(mesh.AnnotationSidecarMemory, "Resources.Memory", "64Mi", "32Mi", "128Mi"),
		newKey(mesh.AnnotationSidecarMemoryLimit, "Resources.MemoryLimit", sidecarMemory, "96Mi", "256Mi"),
		resource.MustParse(sidecarMemory),
	},
}

var sidecarMemory = fmt.Sprintf("%dMi", mesh.DefaultSidecarMemory>>20)

func newKey(annotation, option, standard, least, example string) quantityKey {
	return quantityKey{annotation, option, resource.MustParse(standard), resource.MustParse(least), example}
}

// quantity is a quantity that a user has set.
type quantity struct {
	resource.Quantity
	field, text string // its field and text
}

// demand has the request and limit of a resource from one source, nil if unset.
type demand struct{ request, limit *quantity }

// demands are demands by resource.
type demands map[corev1.ResourceName]demand

// readDemands reads the demands of a source. lookup returns the field of a key and its value. The error joins a
// FieldError for each invalid quantity.
func readDemands(lookup func(quantityKey) (field, text string, ok bool)) (demands, error) {
	all := demands{}
	var errs []error
	read := func(k quantityKey) *quantity {
		field, text, ok := lookup(k)
		if !ok {
			return nil
		}
		q, err := parseQuantity(text)
		if err != nil || k.least.Cmp(q) > 0 {
			errs = append(errs, &mesh.FieldError{
				Field: field, Value: text,
				Allowed: fmt.Sprintf("must be a quantity of at least %s, such as %s", k.least.String(), k.example),
			})
			return nil
		}
		return &quantity{q, field, text}
	}
	for _, r := range computeResources {
		d := demand{read(r.request), read(r.limit)}
		if d.request != nil && d.limit != nil && d.request.Cmp(d.limit.Quantity) > 0 {
			errs = append(errs, &mesh.FieldError{
				Field: d.request.field, Value: d.request.text, Allowed: "must be at most the sidecar's limit, " + d.limit.text,
			})
		}
		if d != (demand{}) {
			all[r.name] = d
		}
	}
	return all, errors.Join(errs...)
}

// demandsOf reads annotations. place is the prefix of their names in errors.
func demandsOf(place string, annotations map[string]string) (demands, error) {
	return readDemands(func(k quantityKey) (field, text string, ok bool) {
		text, ok = annotations[k.annotation]
		return place + annotationField(k.annotation), text, ok
	})
}

// demands reads the demands from the options.
func (r Resources) demands() (demands, error) {
	texts := map[string]string{
		"Resources.CPU": r.CPU, "Resources.CPULimit": r.CPULimit, "Resources.Memory": r.Memory,
		"Resources.MemoryLimit": r.MemoryLimit,
	}
	return readDemands(func(k quantityKey) (field, text string, ok bool) {
		text = texts[k.option]
		return k.option, text, text != ""
	})
}

// quantityText matches quantities with small exponents: rounding 1e-1000000000 would first expand the whole number.
var quantityText = regexp.MustCompile(`^[-+]?[0-9.]{1,64}([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,2})?$`)

// parseQuantity parses a Kubernetes quantity from an untrusted client.
func parseQuantity(text string) (resource.Quantity, error) {
	if !quantityText.MatchString(text) {
		return resource.Quantity{}, resource.ErrFormatWrong
	}
	return resource.ParseQuantity(text) //nolint:wrapcheck // callers say what is allowed
}
