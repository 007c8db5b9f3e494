package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/chart"
)

// registrations is the API path of webhook configurations and admission policies.
const registrations = "/apis/admissionregistration.k8s.io/v1/"

// InstallWebhooks creates the webhooks among the chart's manifests, which call the control plane at this host:port.
// remove deletes them.
func (c *Cluster) InstallWebhooks(
	ctx context.Context, manifests []chart.Manifest, address string,
) (remove func(context.Context) error, err error) {
	return c.register(ctx, manifests, map[string]string{
		"MutatingWebhookConfiguration":   "mutatingwebhookconfigurations",
		"ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
	}, func(o map[string]any) {
		for _, w := range o["webhooks"].([]any) { //nolint:forcetypeassert // the API server would refuse it
			config := w.(map[string]any)["clientConfig"].(map[string]any)                           //nolint:forcetypeassert // as above
			path := config["service"].(map[string]any)["path"].(string)                             //nolint:forcetypeassert // as above
			w.(map[string]any)["clientConfig"] = map[string]any{"url": "https://" + address + path} //nolint:forcetypeassert // as above
		}
	})
}

// InstallPolicies creates the admission policies among the chart's manifests. remove deletes them.
func (c *Cluster) InstallPolicies(
	ctx context.Context, manifests []chart.Manifest,
) (remove func(context.Context) error, err error) {
	return c.register(ctx, manifests, map[string]string{
		"ValidatingAdmissionPolicy":        "validatingadmissionpolicies",
		"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
	}, func(map[string]any) {})
}

// register creates manifests of these kinds, each after a change. remove deletes them.
func (c *Cluster) register(
	ctx context.Context, manifests []chart.Manifest, resources map[string]string, change func(map[string]any),
) (remove func(context.Context) error, err error) {
	var made []string
	remove = func(ctx context.Context) error {
		var errs []error
		for _, path := range made {
			_, err := c.Do(ctx, http.MethodDelete, path, "", "")
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	for _, m := range manifests {
		resource, ok := resources[m.Kind]
		if !ok {
			continue
		}
		var object map[string]any
		if err := yaml.Unmarshal([]byte(m.YAML), &object); err != nil {
			return remove, err
		}
		change(object)
		text, err := json.Marshal(object)
		if err != nil {
			return remove, err
		}
		path := registrations + resource + "?fieldValidation=Strict"
		if _, err := c.Do(ctx, http.MethodPost, path, "application/json", string(text)); err != nil {
			return remove, err
		}
		made = append(made, strings.Join([]string{registrations, resource, "/", m.Name}, ""))
	}
	return remove, nil
}
