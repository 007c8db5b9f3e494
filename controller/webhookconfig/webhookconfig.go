// Package webhookconfig writes the CA of the control plane's webhook into the webhook configurations, so that the API
// server trusts it, and checks the result. The chart installs the configurations without a CA.
package webhookconfig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/controller/upkeep"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// Options of Run.
type Options struct {
	// Client of the API server, without a timeout: it watches. Required.
	Client kubernetes.Interface
	// Name of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration. Required.
	Name string
	// CA returns the PEM bundle that verifies the webhook's certificate. Required.
	CA func() []byte
	// Changed receives when CA returns a different bundle. Default: never.
	Changed <-chan struct{}
	// Logger. Required.
	Logger *slog.Logger
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
}

// configuration is the record of a webhook configuration.
type configuration struct {
	version string
	bundles [][]byte // of its webhooks, in their order
}

// store keeps one configuration of one kind.
type store interface {
	Run(ctx context.Context) error
	Missing() error
	Get(key watch.Key) *configuration
}

// kind is a kind of webhook configuration.
type kind struct {
	resource string
	store    store
}

// Run keeps the CA bundle in the configurations until ctx ends, and then returns nil. Only one replica may run it.
func Run(ctx context.Context, o Options) error {
	keeper := upkeep.New()
	changed := func(watch.Key, *configuration, *configuration) { keeper.Wake() }
	client, selector := o.Client.AdmissionregistrationV1().RESTClient(),
		fields.OneTermEqualSelector("metadata.name", o.Name).String()
	kinds := []*kind{
		{resource: "mutatingwebhookconfigurations", store: watch.New(watch.Kind[*admissionv1.MutatingWebhookConfiguration,
			configuration]{
			Client: client, Resource: "mutatingwebhookconfigurations", Fields: selector,
			New:    &admissionv1.MutatingWebhookConfiguration{},
			Record: readMutating, Changed: changed,
		})},
		{resource: "validatingwebhookconfigurations", store: watch.New(watch.Kind[*admissionv1.ValidatingWebhookConfiguration,
			configuration]{
			Client: client, Resource: "validatingwebhookconfigurations", Fields: selector,
			New:    &admissionv1.ValidatingWebhookConfiguration{},
			Record: readValidating, Changed: changed,
		})},
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, k := range kinds {
		group.Go(func() error { return k.store.Run(ctx) })
	}
	group.Go(func() error {
		return keeper.Run(ctx, upkeep.Work{
			Write: func(ctx context.Context) error { return o.writeAll(ctx, client, kinds, keeper) },
			Failing: func(ctx context.Context, err error) {
				o.Logger.WarnContext(ctx, "failed to write the CA of the webhook, API servers cannot call it", "err", err)
			},
			Changed: o.Changed, Loop: o.Loop,
		})
	})
	return group.Wait()
}

// Bundles returns the CA bundles with which the API server verifies the webhooks of the configurations with that name,
// one per webhook. It is empty without a configuration.
func Bundles(ctx context.Context, client kubernetes.Interface, name string) ([][]byte, error) {
	// List instead of get, since the RBAC rules allow list for this name anyway.
	one := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	api := client.AdmissionregistrationV1()
	mutating, err := api.MutatingWebhookConfigurations().List(ctx, one)
	if err != nil {
		return nil, fmt.Errorf("list mutatingwebhookconfigurations: %w", err)
	}
	validating, err := api.ValidatingWebhookConfigurations().List(ctx, one)
	if err != nil {
		return nil, fmt.Errorf("list validatingwebhookconfigurations: %w", err)
	}
	var bundles [][]byte
	for i := range mutating.Items {
		c, _ := readMutating(&mutating.Items[i])
		bundles = append(bundles, c.bundles...)
	}
	for i := range validating.Items {
		c, _ := readValidating(&validating.Items[i])
		bundles = append(bundles, c.bundles...)
	}
	return bundles, nil
}

func readMutating(c *admissionv1.MutatingWebhookConfiguration) (configuration, bool) {
	r := configuration{version: c.ResourceVersion}
	for i := range c.Webhooks {
		r.bundles = append(r.bundles, bytes.Clone(c.Webhooks[i].ClientConfig.CABundle))
	}
	return r, true
}

func readValidating(c *admissionv1.ValidatingWebhookConfiguration) (configuration, bool) {
	r := configuration{version: c.ResourceVersion}
	for i := range c.Webhooks {
		r.bundles = append(r.bundles, bytes.Clone(c.Webhooks[i].ClientConfig.CABundle))
	}
	return r, true
}

// writeAll writes the CA into all configurations.
func (o Options) writeAll(ctx context.Context, client rest.Interface, kinds []*kind, keeper *upkeep.Keeper) error {
	var problems []string
	for _, k := range kinds {
		if err := o.write(ctx, client, k, keeper); err != nil {
			problems = append(problems, k.resource+": "+err.Error())
		}
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// write writes the CA into one configuration, unless it is there already.
func (o Options) write(ctx context.Context, client rest.Interface, k *kind, keeper *upkeep.Keeper) error {
	is := k.store.Get(watch.Key{Name: o.Name})
	if is == nil {
		if err := k.store.Missing(); err != nil {
			return err
		}
		return fmt.Errorf("%q not found", o.Name)
	}
	patch := patchOf(is, o.CA())
	if patch == nil {
		return nil
	}
	return keeper.Request(ctx, func(ctx context.Context) error {
		if err := client.Patch(types.JSONPatchType).Resource(k.resource).Name(o.Name).Body(patch).Do(ctx).
			Error(); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	})
}

// operation is an operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patchOf returns the JSON patch that sets the CA in each webhook that has another one, nil if all have it. The patch
// is valid only for the version that was read, since it refers to webhooks by index.
func patchOf(c *configuration, ca []byte) []byte {
	operations := []operation{{"test", "/metadata/resourceVersion", c.version}}
	for i, bundle := range c.bundles {
		if !bytes.Equal(bundle, ca) {
			operations = append(operations, operation{"add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), ca})
		}
	}
	if len(operations) == 1 {
		return nil
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		panic(fmt.Sprintf("encode a patch of texts: %v", err)) // cannot happen
	}
	return patch
}
