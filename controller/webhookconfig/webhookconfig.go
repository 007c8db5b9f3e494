// Package webhookconfig writes the CA of the control plane's webhook into the webhook configurations, so that the API server
// trusts it. The chart installs the configurations without one.
package webhookconfig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// recheck is how often the configurations are read: somebody may install the chart again, which takes the CA out.
const recheck = 10 * time.Second

// Options of Run.
type Options struct {
	// Client of the API server. Required.
	Client kubernetes.Interface
	// Name of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration. Required.
	Name string
	// CA returns the PEM bundle that signs the webhook's certificate. Required.
	CA func() []byte
	// Logger. Required.
	Logger *slog.Logger
}

// Run keeps the CA bundle in the configurations until ctx ends, and then returns nil. It is for one replica at a time.
func Run(ctx context.Context, o Options) error {
	known := "" // the last problem that was logged
	_ = wait.PollUntilContextCancel(ctx, recheck, true, func(ctx context.Context) (bool, error) {
		problem := ""
		if err := o.write(ctx); err != nil {
			problem = err.Error()
		}
		if problem != "" && problem != known && ctx.Err() == nil {
			o.Logger.WarnContext(ctx, "CA of the webhook not written: API servers cannot call it until it is", "err", problem)
		}
		known = problem
		return false, nil
	}) // ends with ctx alone
	return nil
}

func (o Options) write(ctx context.Context) error {
	return errors.Join(o.writeMutating(ctx), o.writeValidating(ctx))
}

func (o Options) writeMutating(ctx context.Context) error {
	api := o.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	is, err := api.Get(ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read MutatingWebhookConfiguration: %w", err)
	}
	var configs []*admissionv1.WebhookClientConfig
	for i := range is.Webhooks {
		configs = append(configs, &is.Webhooks[i].ClientConfig)
	}
	if patch := o.patch(configs, is.ResourceVersion); patch != nil {
		if _, err := api.Patch(ctx, o.Name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("write MutatingWebhookConfiguration: %w", err)
		}
	}
	return nil
}

func (o Options) writeValidating(ctx context.Context) error {
	api := o.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	is, err := api.Get(ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read ValidatingWebhookConfiguration: %w", err)
	}
	var configs []*admissionv1.WebhookClientConfig
	for i := range is.Webhooks {
		configs = append(configs, &is.Webhooks[i].ClientConfig)
	}
	if patch := o.patch(configs, is.ResourceVersion); patch != nil {
		if _, err := api.Patch(ctx, o.Name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("write ValidatingWebhookConfiguration: %w", err)
		}
	}
	return nil
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch returns the JSON patch that puts the CA into each webhook that has another one, nil if none has. It holds only for the
// version that was read, since it names webhooks by their index.
func (o Options) patch(configs []*admissionv1.WebhookClientConfig, version string) []byte {
	ca := o.CA()
	operations := []operation{{"test", "/metadata/resourceVersion", version}}
	for i, c := range configs {
		if !bytes.Equal(c.CABundle, ca) {
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
