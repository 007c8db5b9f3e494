// Package chart renders the chart of deploy/chart as Helm does, with Helm's library, for tests.
package chart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"helm.sh/helm/v4/pkg/strvals"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/harness"
)

const (
	// Namespace is the namespace of the release.
	Namespace = "sonde-system"
	// kubeVersion is the default version of the API server for rendering.
	kubeVersion = "1.34.0"
	// releaseName is the name of a release in `helm template`.
	releaseName = "release-name"
)

// Manifest is one object of the chart.
type Manifest struct {
	Kind, Name, YAML string
}

// Decode decodes a manifest into a type of the API, and rejects unknown fields.
func (m Manifest) Decode(into any) error {
	if err := yaml.UnmarshalStrict([]byte(m.YAML), into); err != nil {
		return fmt.Errorf("decode %s %s: %w", m.Kind, m.Name, err)
	}
	return nil
}

// rendered is the chart rendered with a set of values.
type rendered struct{ manifests, hooks, notes string }

// renderings has the rendered charts, by their flags.
var renderings sync.Map

// Text returns the output of `helm template`, without empty lines, with these flags: --set, --set-string, --set-json,
// --values with a file, and --kube-version.
func Text(ctx context.Context, flags ...string) (string, error) {
	r, err := render(ctx, flags)
	return r.manifests + r.hooks, err
}

// Render returns the objects that the chart installs with these flags, without CustomResourceDefinitions and
// hooks.
func Render(ctx context.Context, flags ...string) ([]Manifest, error) {
	r, err := render(ctx, flags)
	if err != nil {
		return nil, err
	}
	return split(r.manifests)
}

// Hooks returns the objects that exist only while the chart is installed or upgraded.
func Hooks(ctx context.Context, flags ...string) ([]Manifest, error) {
	r, err := render(ctx, flags)
	if err != nil {
		return nil, err
	}
	return split(r.hooks)
}

// Notes returns Helm's notes after an installation with these flags.
func Notes(ctx context.Context, flags ...string) (string, error) {
	r, err := render(ctx, flags)
	return r.notes, err
}

// Lint is `helm lint --strict` with these flags.
func Lint(flags ...string) error {
	o, err := parse(flags)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range lint.RunAll(o.directory, o.values, Namespace, lint.WithKubeVersion(o.version)).Messages {
		if m.Severity >= support.WarningSev {
			errs = append(errs, m)
		}
	}
	return errors.Join(errs...)
}

// options are the values of flags.
type options struct {
	directory string // of the chart
	values    map[string]any
	version   *common.KubeVersion
}

func parse(flags []string) (options, error) {
	root, err := harness.Root()
	if err != nil {
		return options{}, err
	}
	o := options{directory: filepath.Join(root, "deploy", "chart"), values: map[string]any{}}
	if o.version, err = common.ParseKubeVersion(kubeVersion); err != nil {
		return options{}, err
	}
	for _, flag := range flags {
		name, value, _ := strings.Cut(flag, "=")
		switch name {
		case "--set":
			err = strvals.ParseInto(value, o.values)
		case "--set-string":
			err = strvals.ParseIntoString(value, o.values)
		case "--set-json":
			err = strvals.ParseJSON(value, o.values)
		case "--values":
			err = o.read(value)
		case "--kube-version":
			o.version, err = common.ParseKubeVersion(value)
		default:
			err = errors.New("unknown flag")
		}
		if err != nil {
			return options{}, fmt.Errorf("%s: %w", flag, err)
		}
	}
	return o, nil
}

// read adds the values of a file.
func (o *options) read(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	values, err := loader.LoadValues(file)
	o.values = loader.MergeMaps(o.values, values)
	return errors.Join(err, file.Close())
}

func render(ctx context.Context, flags []string) (rendered, error) {
	key := strings.Join(flags, "\n")
	if r, done := renderings.Load(key); done {
		return r.(rendered), nil //nolint:forcetypeassert // of the one type that is stored
	}
	o, err := parse(flags)
	if err != nil {
		return rendered{}, err
	}
	chart, err := loader.LoadDir(o.directory)
	if err != nil {
		return rendered{}, err
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *o.version
	release := common.ReleaseOptions{Name: releaseName, Namespace: Namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, o.values, release, capabilities)
	if err != nil {
		return rendered{}, err
	}
	files, err := engine.Engine{}.RenderWithContext(ctx, chart, all)
	if err != nil {
		return rendered{}, err
	}
	var r rendered
	for name, text := range files {
		if filepath.Base(name) == "NOTES.txt" {
			r.notes = text
			delete(files, name)
		}
	}
	hooks, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return rendered{}, err
	}
	const form = "---\n# Source: %s\n%s\n"
	for _, m := range manifests {
		r.manifests += fmt.Sprintf(form, m.Name, m.Content)
	}
	for _, h := range hooks {
		r.hooks += fmt.Sprintf(form, h.Path, h.Manifest)
	}
	renderings.Store(key, r)
	return r, nil
}

// split returns the objects of a text with several YAML documents.
func split(text string) ([]Manifest, error) {
	var all []Manifest
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		var head struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			return nil, fmt.Errorf("decode the objects of the chart: %w", err)
		}
		if head.Kind != "" {
			all = append(all, Manifest{Kind: head.Kind, Name: head.Metadata.Name, YAML: document})
		}
	}
	return all, nil
}
