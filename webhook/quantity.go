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

// Resources are those of the sidecars of all pods, as quantities such as "250m", "" for the default. Annotations of a pod and of its
// namespace say something else.
type Resources struct {
	CPU, CPULimit, Memory, MemoryLimit string
}

// AddFlags adds a flag for each.
func (r *Resources) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&r.CPU, "sidecar-cpu", "", "`QUANTITY` of CPU that sidecars request; default 50m, and 250m in pods of QoS Guaranteed")
	flags.StringVar(&r.CPULimit, "sidecar-cpu-limit", "", "`QUANTITY` of CPU that sidecars are limited to; default 1, and in pods of QoS Guaranteed what they request")
	flags.StringVar(&r.Memory, "sidecar-memory", "", "`QUANTITY` of memory that sidecars request; default 64Mi, and "+sidecarMemory+" in pods of QoS Guaranteed")
	flags.StringVar(&r.MemoryLimit, "sidecar-memory-limit", "", "`QUANTITY` of memory that sidecars are limited to; default "+sidecarMemory+", and in pods of QoS Guaranteed what they request")
}

// computeResource is one of the resources by which Kubernetes decides about the QoS class of a pod.
type computeResource struct {
	name           corev1.ResourceName
	request, limit quantityKey
	// guaranteed is request and limit in a pod of QoS Guaranteed (docs/decisions/041-resources-of-the-sidecar.md).
	guaranteed resource.Quantity
}

// quantityKey is where users set a quantity.
type quantityKey struct {
	annotation string
	option     string // the field of Options
	standard   resource.Quantity
	least      resource.Quantity
	example    string
}

// computeResources have the least quantities with which Envoy and its agent come up, and the requests that leave them room at rest
// (docs/decisions/041-resources-of-the-sidecar.md).
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

// quantity is one that is set.
type quantity struct {
	resource.Quantity
	field, text string // where, and as it is written
}

// demand is what one place says about a resource of the sidecar, nil where it says nothing.
type demand struct{ request, limit *quantity }

// demands are those of one place.
type demands map[corev1.ResourceName]demand

// readDemands reads the demands of a place. lookup returns the field of a key and what is there. The error joins a FieldError for each
// quantity that is bad.
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
				Field: field, Value: text, Allowed: fmt.Sprintf("must be a quantity of at least %s, such as %s", k.least.String(), k.example),
			})
			return nil
		}
		return &quantity{q, field, text}
	}
	for _, r := range computeResources {
		d := demand{read(r.request), read(r.limit)}
		if d.request != nil && d.limit != nil && d.request.Cmp(d.limit.Quantity) > 0 {
			errs = append(errs, &mesh.FieldError{
				Field: d.request.field, Value: d.request.text, Allowed: "must be at most the limit of the sidecar, which is " + d.limit.text,
			})
		}
		if d != (demand{}) {
			all[r.name] = d
		}
	}
	return all, errors.Join(errs...)
}

// demandsOf reads annotations. place is what stands before the names of their fields.
func demandsOf(place string, annotations map[string]string) (demands, error) {
	return readDemands(func(k quantityKey) (field, text string, ok bool) {
		text, ok = annotations[k.annotation]
		return place + annotationField(k.annotation), text, ok
	})
}

// demands reads the options.
func (r Resources) demands() (demands, error) {
	texts := map[string]string{
		"Resources.CPU": r.CPU, "Resources.CPULimit": r.CPULimit, "Resources.Memory": r.Memory, "Resources.MemoryLimit": r.MemoryLimit,
	}
	return readDemands(func(k quantityKey) (field, text string, ok bool) {
		text = texts[k.option]
		return k.option, text, text != ""
	})
}

// quantityText matches quantities whose exponent keeps no processor busy: of 1e-1000000000 the whole number would be written
// out to round it.
var quantityText = regexp.MustCompile(`^[-+]?[0-9.]{1,64}([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,2})?$`)

// parseQuantity parses a quantity of Kubernetes, which any client of the API server may have written.
func parseQuantity(text string) (resource.Quantity, error) {
	if !quantityText.MatchString(text) {
		return resource.Quantity{}, resource.ErrFormatWrong
	}
	return resource.ParseQuantity(text) //nolint:wrapcheck // callers say what is allowed
}
