package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// lookUpEvery is the minimum interval between discoveries for an unknown kind, whose CustomResourceDefinition may have
// been created.
const lookUpEvery = time.Minute

// Clients has clients for the objects of all namespaces of one API server. It is safe for concurrent use.
type Clients struct {
	mapper   *restmapper.DeferredDiscoveryRESTMapper
	anew     *rate.Limiter // limits discovery for unknown kinds
	metadata metadata.Interface
	scales   scale.ScalesGetter
}

// NewClients returns clients for the API server in config, which includes the request timeout.
func NewClients(config *rest.Config) (*Clients, error) {
	discovered, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for discovery: %w", err)
	}
	cached := memory.NewMemCacheClient(discovered)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for metadata: %w", err)
	}
	scales, err := scale.NewForConfig(config, mapper, dynamic.LegacyAPIPathResolverFunc,
		scale.NewDiscoveryScaleKindResolver(cached))
	if err != nil {
		return nil, fmt.Errorf("create client for scales: %w", err)
	}
	return &Clients{
		mapper: mapper, anew: rate.NewLimiter(rate.Every(lookUpEvery), 1), metadata: objects, scales: scales,
	}, nil
}

// In returns a client for the objects of a namespace.
func (c *Clients) In(namespace string) *Client { return &Client{Clients: c, namespace: namespace} }

// Client implements Objects.
type Client struct {
	*Clients
	namespace string
}

var _ Objects = (*Client)(nil)

// resource returns the resource of a dependant's kind.
func (c *Client) resource(ref v1alpha1.DependantRef) (schema.GroupVersionResource, error) {
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("version of the kind: %w", err)
	}
	mapping, err := c.mapper.RESTMapping(schema.GroupKind{Group: version.Group, Kind: ref.Kind}, version.Version)
	if meta.IsNoMatchError(err) {
		if c.anew.Allow() {
			c.mapper.Reset()
		}
		return schema.GroupVersionResource{}, fmt.Errorf("kind %s of %s: %w", ref.Kind, ref.APIVersion, ErrGone)
	}
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("find kind %s of %s: %w", ref.Kind, ref.APIVersion, err)
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return schema.GroupVersionResource{}, fmt.Errorf("kind %s of %s: must be namespaced",
			ref.Kind, ref.APIVersion)
	}
	return mapping.Resource, nil
}

// Get implements Objects.
func (c *Client) Get(ctx context.Context, ref v1alpha1.DependantRef) (Object, error) {
	resource, err := c.resource(ref)
	if err != nil {
		return Object{}, err
	}
	for range attempts {
		object, err := c.metadata.Resource(resource).Namespace(c.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return Object{}, ErrGone
		}
		if err != nil {
			return Object{}, fmt.Errorf("read: %w", err)
		}
		s, err := c.scales.Scales(c.namespace).Get(ctx, resource.GroupResource(), ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return Object{}, ErrNoScale
		}
		if err != nil {
			return Object{}, fmt.Errorf("read scale subresource: %w", err)
		}
		if s.ResourceVersion == object.ResourceVersion { // otherwise the object changed between the two reads
			return Object{Version: s.ResourceVersion, Annotations: object.Annotations, Replicas: s.Spec.Replicas,
				Running: s.Status.Replicas}, nil
		}
	}
	return Object{}, ErrConflict
}

// Annotate implements Objects.
func (c *Client) Annotate(
	ctx context.Context, ref v1alpha1.DependantRef, version string, annotations map[string]*string,
) (string, error) {
	resource, err := c.resource(ref)
	if err != nil {
		return "", err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": version,
		"annotations": annotations}})
	if err != nil {
		return "", fmt.Errorf("encode annotations: %w", err)
	}
	object, err := c.metadata.Resource(resource).Namespace(c.namespace).Patch(ctx, ref.Name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		return "", explain("annotate", err)
	}
	return object.ResourceVersion, nil
}

// SetReplicas implements Objects.
func (c *Client) SetReplicas(
	ctx context.Context, ref v1alpha1.DependantRef, version string, replicas int32,
) (string, error) {
	resource, err := c.resource(ref)
	if err != nil {
		return "", err
	}
	set, err := c.scales.Scales(c.namespace).Update(ctx, resource.GroupResource(), &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: ref.Name, Namespace: c.namespace, ResourceVersion: version},
		Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
	}, metav1.UpdateOptions{})
	if err != nil {
		return "", explain("set replicas", err)
	}
	return set.ResourceVersion, nil
}

// explain maps an API error to the errors of Objects.
func explain(what string, err error) error {
	switch {
	case apierrors.IsConflict(err):
		return ErrConflict
	case apierrors.IsNotFound(err):
		return ErrGone
	}
	return fmt.Errorf("%s: %w", what, err)
}
