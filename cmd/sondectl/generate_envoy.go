package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/manifest"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

func (c *cli) generateEnvoy() *cobra.Command {
	var path, meshName, trustDomain string
	var static bool
	mode := manifest.NewModeChoice()
	cmd := &cobra.Command{
		Use:   "envoy [NAME] -f FILE|DIR|-",
		Short: "Write the Envoy resources for files, without any server",
		Long: `Write the Envoy resources of one proxy as YAML: the listeners, clusters, endpoints and routes that the control plane
would send if the files were its store. No server is needed. The command prints problems of the files to stderr.

NAME is the name of a Dataplane in any mesh of the files. If several meshes have it, set --mesh. You can omit NAME if
the files have only one Dataplane.

With --static, the output is one configuration that Envoy can run, including endpoints, routes and secrets. Its
certificate, key and bundle come from a throw-away CA: use it for "envoy --mode validate" and for experiments.`,
		Example: `  sondectl generate envoy web-1 -f mesh/
  sondectl generate envoy -f dataplane.yaml --static > envoy.yaml && envoy --mode validate -c envoy.yaml
  diff <(sondectl generate envoy web-1 -f new/) <(sondectl generate envoy web-1 -f old/)`,
		Args: cobra.MaximumNArgs(1),
	}
	fileFlag(cmd, &path, objectsUsage)
	cmd.Flags().Var(&names.Flag{To: &meshName, Among: []names.Kind{names.Mesh}}, "mesh", "`MESH` of the Dataplane")
	cmd.Flags().BoolVar(&static, "static", false, "write one complete static configuration")
	mode.Add(cmd, manifest.ModeFlag, "", modeOfFiles)
	cmd.Flags().StringVar(&trustDomain, "trust-domain", mesh.DefaultTrustDomain, "`SUFFIX` of all trust domains, as in the control plane's --trust-domain")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for i := range args {
			var err error
			if _, args[i], err = names.Parse(args[i], names.Dataplane); err != nil {
				return err
			}
		}
		change, err := readView(cmd, path, trustDomain, mode.Value)
		if err != nil {
			return err
		}
		id, err := findProxy(change.After, meshName, args)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if static {
			return writeStatic(cmd.Context(), &c.out, change.After, id, trustDomain)
		}
		return c.writeResources(change, id, trustDomain)
	}
	return cmd
}

// readView builds the control plane's view from files.
func readView(cmd *cobra.Command, path, trustDomain string, mode mesh.ProbesMode) (meshview.Change, error) {
	documents, err := readObjects(cmd, path, mode)
	if err != nil {
		return meshview.Change{}, err
	}
	const source = "files"
	builder := meshview.NewBuilder(meshview.Options{TrustDomain: trustDomain, Sources: []string{source}})
	for _, d := range documents {
		builder.Set(source, d.Object)
	}
	builder.Synced(source)
	change, _ := builder.Build()
	return change, nil
}

// findProxy returns the proxy named in args, in one mesh or in all; without args, the only proxy.
func findProxy(view *meshview.View, meshName string, args []string) (mesh.ID, error) {
	if meshName != "" && view.Mesh(meshName) == nil {
		meshes := slices.Sorted(maps.Keys(view.Meshes))
		return "", fmt.Errorf("mesh %q not found%s", meshName, nearestOf(meshName, meshes, meshes))
	}
	var all, named []mesh.ID
	var known []string
	for inMesh, m := range view.Meshes {
		for name := range m.Proxies.All() {
			if meshName != "" && meshName != inMesh {
				continue
			}
			id := mesh.MakeID(inMesh, name)
			all, known = append(all, id), append(known, name)
			if len(args) == 1 && name == args[0] {
				named = append(named, id)
			}
		}
	}
	slices.Sort(all)
	slices.Sort(named)
	switch {
	case len(all) == 0:
		return "", errors.New("no Dataplane found")
	case len(args) == 0 && len(all) == 1:
		return all[0], nil
	case len(args) == 0:
		return "", fmt.Errorf("several Dataplanes found, name one: %s", strings.Join(all, ", "))
	case len(named) == 0:
		slices.Sort(known)
		return "", fmt.Errorf("dataplane %q not found%s", args[0], nearestOf(args[0], known, all))
	case len(named) > 1:
		return "", fmt.Errorf("several meshes have a Dataplane %q, set --mesh: %s", args[0], strings.Join(named, ", "))
	default:
		return named[0], nil
	}
}

// nearestOf returns the end of a not-found message: the most similar name, or the first names if none is similar.
func nearestOf(name string, known, all []string) string {
	if near, _ := mesh.Nearest(name, known); near != "" {
		return didYouMean(near)
	}
	return ": there are " + printer.FirstFew(all, ", ")
}

// writeResources writes the resources of each kind under its name, in the order of Kinds.
func (c *cli) writeResources(change meshview.Change, id mesh.ID, trustDomain string) error {
	var failed []error
	translator := generator.NewTranslator(generator.TranslatorOptions{
		TrustDomain: trustDomain, Report: func(err error) { failed = append(failed, err) },
	})
	if _, err := translator.Apply(change); err != nil {
		return err
	}
	desired, _ := translator.Resources(id)
	if err := errors.Join(failed...); err != nil {
		return err
	}
	fmt.Fprintf(&c.out, "# Envoy resources of %s.\n", id)
	for _, kind := range adminv1.Kinds() {
		if kind == adminv1.KindBootstrap {
			continue // the bootstrap names a control plane, which does not exist here
		}
		bodies, err := encode(resourcesOf(desired, kind))
		if err != nil {
			return fmt.Errorf("encode %s of %s: %w", kind, id, err)
		}
		if err := writeKind(&c.out, printer.YAML, kind, bodies); err != nil {
			return err
		}
	}
	return nil
}

// resourcesOf returns the resources of one kind, sorted by name.
func resourcesOf(desired resource.Desired, kind adminv1.Kind) []*resource.Resource {
	t := map[adminv1.Kind]resource.Type{
		adminv1.KindListeners: resource.Listener, adminv1.KindClusters: resource.Cluster,
		adminv1.KindEndpoints: resource.Endpoint, adminv1.KindRoutes: resource.Route,
	}[kind]
	return desired.Of(t)
}

// encode encodes resources as JSON.
func encode(resources []*resource.Resource) ([][]byte, error) {
	bodies := make([][]byte, 0, len(resources))
	for _, r := range resources {
		message, err := r.Body.UnmarshalNew()
		if err != nil {
			return nil, err
		}
		body, err := envoyJSON(message)
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
	}
	return bodies, nil
}

// envoyJSON encodes a message as JSON, with the field names of Envoy's documentation.
func envoyJSON(m proto.Message) ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
}
