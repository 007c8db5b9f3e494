// Package definitions updates the CustomResourceDefinitions of an API server to this build's. Helm installs the files
// of a chart's crds/ once, and never updates them, so a hook of the chart runs this package before an upgrade (decision
// 058).
package definitions

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"golang.org/x/mod/semver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// AnnotationVersion has the version of the last build that wrote a definition.
const AnnotationVersion = "sonde.dev/version"

// fieldManager owns the written fields.
const fieldManager = "sonde-crds"

// establishedInterval is the polling interval until the API server serves a definition.
const establishedInterval = 200 * time.Millisecond

var resource = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Options of Apply.
type Options struct {
	// Client of the API server. Required.
	Client dynamic.Interface
	// Files has the definitions, one YAML file each. Required.
	Files fs.ReadDirFS
	// Version of this build, from buildinfo. Required.
	Version string
	// Logger. Required.
	Logger *slog.Logger
}

// Apply creates missing definitions, updates the others, whoever created them, and waits until the API server serves
// all of them. It keeps definitions of a newer version, since an older schema would drop fields that users have written
// since. It returns all errors, joined.
func Apply(ctx context.Context, o Options) error {
	files, err := o.Files.ReadDir(".")
	if err != nil {
		return fmt.Errorf("list the CustomResourceDefinitions of this build: %w", err)
	}
	var errs []error
	for _, f := range files {
		definition, err := o.read(f.Name())
		if err == nil {
			err = o.apply(ctx, definition)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (o *Options) read(name string) (*unstructured.Unstructured, error) {
	text, err := fs.ReadFile(o.Files, name)
	if err != nil {
		return nil, fmt.Errorf("read a CustomResourceDefinition of this build: %w", err)
	}
	u := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict(text, &u.Object); err != nil {
		return nil, fmt.Errorf("decode CustomResourceDefinition in %s: %w", name, err)
	}
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[AnnotationVersion] = o.Version
	u.SetAnnotations(annotations)
	return u, nil
}

func (o *Options) apply(ctx context.Context, definition *unstructured.Unstructured) error {
	client, name := o.Client.Resource(resource), definition.GetName()
	there, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get CustomResourceDefinition %s: %w", name, err)
	}
	before := ""
	if err == nil {
		before = there.GetResourceVersion()
		if of := there.GetAnnotations()[AnnotationVersion]; newer(of, o.Version) {
			o.Logger.WarnContext(ctx, "keeping a definition of a newer version", "name", name, "version", of)
			return nil
		}
	}
	now, err := client.Apply(ctx, name, definition, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("apply CustomResourceDefinition %s: %w", name, err)
	}
	if err := o.established(ctx, name); err != nil {
		return fmt.Errorf("wait for CustomResourceDefinition %s to be served: %w", name, err)
	}
	o.Logger.InfoContext(ctx, "definition applied", "name", name, "created", before == "",
		"changed", now.GetResourceVersion() != before)
	return nil
}

// newer reports whether version a is newer than b. It is false if one of them is not a version.
func newer(a, b string) bool {
	return semver.IsValid(a) && semver.IsValid(b) && semver.Compare(a, b) > 0
}

// conditions is the part of a definition's status that established reads.
type conditions struct {
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// established waits until the API server serves a definition.
func (o *Options) established(ctx context.Context, name string) error {
	last := errors.New("it is not established yet")
	err := wait.PollUntilContextCancel(ctx, establishedInterval, true, func(ctx context.Context) (bool, error) {
		u, err := o.Client.Resource(resource).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			last = err
			return false, nil //nolint:nilerr // it is asked again
		}
		var now conditions
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &now); err != nil {
			return false, fmt.Errorf("read its conditions: %w", err)
		}
		for _, c := range now.Status.Conditions {
			switch {
			case c.Type == "NamesAccepted" && c.Status == "False":
				last = fmt.Errorf("its names are not accepted: %s", c.Message)
			case c.Type == "Established" && c.Status == "True":
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return err
}
