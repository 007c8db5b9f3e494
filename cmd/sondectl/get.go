package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

// collections lists the kinds of objects for get, in the order of its help.
var collections = []collection{meshes, dataplanes, services, meshServices, proxies}

// Columns of tables that fit printer.Width.
const (
	meshesHeader       = "NAME MTLS MODE BACKEND CA-EXPIRES PROXIES SERVICES"
	dataplanesHeader   = "MESH NAME SERVICES HEALTH"
	servicesHeader     = "MESH NAME PROTOCOL ENDPOINTS SIDECARS"
	meshServicesHeader = "MESH NAME PORTS ENDPOINTS"
	proxiesHeader      = "MESH NAME AGENT SINCE SYNCED VERSION?"
)

var (
	meshes = newCollection(names.Mesh, meshColumns,
		meshesHeader, "CERT-VALIDITY PASSTHROUGH LABELS",
		adminv1.AdminServiceClient.ListMeshes, (*adminv1.ListMeshesResponse).GetMeshes,
		func(f *adminv1.Filter) *adminv1.ListMeshesRequest { return &adminv1.ListMeshesRequest{Filter: f} }, showMesh)
	dataplanes = newCollection(names.Dataplane, dataplaneColumns,
		dataplanesHeader, "ADDRESS WORKLOAD OUTBOUNDS LABELS",
		adminv1.AdminServiceClient.ListDataplanes, (*adminv1.ListDataplanesResponse).GetDataplanes,
		func(f *adminv1.Filter) *adminv1.ListDataplanesRequest {
			return &adminv1.ListDataplanesRequest{Filter: f}
		}, showDataplane)
	services = newCollection(names.Service, serviceColumns,
		servicesHeader, "ADDRESSES IDENTITIES READY",
		adminv1.AdminServiceClient.ListServices, (*adminv1.ListServicesResponse).GetServices,
		func(f *adminv1.Filter) *adminv1.ListServicesRequest { return &adminv1.ListServicesRequest{Filter: f} }, showService)
	meshServices = newCollection(names.MeshService, meshServiceColumns,
		meshServicesHeader, "SELECTOR DATAPLANES SERVICES LABELS",
		adminv1.AdminServiceClient.ListMeshServices, (*adminv1.ListMeshServicesResponse).GetMeshServices,
		func(f *adminv1.Filter) *adminv1.ListMeshServicesRequest {
			return &adminv1.ListMeshServicesRequest{Filter: f}
		}, showMeshService)
	proxies = newCollection(names.Proxy, proxyColumns,
		proxiesHeader, "ADS ENVOY DRAINING CERT-EXPIRES NACK XDS SERIAL BUNDLE REPLICAS FEATURES",
		adminv1.AdminServiceClient.ListProxies, (*adminv1.ListProxiesResponse).GetProxies,
		func(f *adminv1.Filter) *adminv1.ListProxiesRequest {
			return &adminv1.ListProxiesRequest{Filter: f, Verdicts: true}
		}, showMessage(proxyRow))
)

// collection is one kind of object that get lists.
type collection struct {
	singular names.Kind
	// columns is the help text about the table's columns.
	columns string
	// inMeshes means that the objects belong to meshes, so the command has the flag --mesh.
	inMeshes bool
	list     func(context.Context, adminv1.AdminServiceClient, *adminv1.Filter) (*listing, error)
}

// newCollection returns a collection that a method of the admin API lists. header names the columns of the table, and
// more the columns that -o wide adds.
func newCollection[Request any, Answer interface{ GetTail() *adminv1.Tail }, Entry any](
	singular names.Kind, columns, header, more string,
	method func(adminv1.AdminServiceClient, context.Context, Request, ...grpc.CallOption) (Answer, error),
	entries func(Answer) []Entry, request func(*adminv1.Filter) Request, show shower[Entry],
) collection {
	list := func(ctx context.Context, api adminv1.AdminServiceClient, filter *adminv1.Filter) (*listing, error) {
		found, err := method(api, ctx, request(filter))
		if err != nil {
			return nil, err
		}
		l, err := newListing(header, entries(found), show)
		if err != nil {
			return nil, err
		}
		l.more, l.tail = strings.Fields(more), found.GetTail()
		if of, ok := any(found).(*adminv1.ListProxiesResponse); ok {
			l.probesLeftOut, l.compared = describe.ProbesLeftOut(of.GetProxies()), comparedProxies(of.GetProxies())
		}
		return l, nil
	}
	return collection{singular, columns, singular != names.Mesh, list}
}

// name returns the name of a row's object.
func (r collection) name(of printer.Row) string {
	if r.inMeshes {
		return of.Cells[1]
	}
	return of.Cells[0]
}

// plural is the name of the command, others are its aliases.
func (r collection) plural() string { return r.singular.Words()[0] }
func (r collection) others() []string {
	return append([]string{string(r.singular)}, r.singular.Words()[1:]...)
}

func (c *cli) get() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show meshes, dataplanes, services, meshservices or proxies",
		Long: `Show the control plane's meshes, dataplanes, services, meshservices or proxies (the Envoys and their agents).

-o yaml writes one document for each object, -o json one list. Except for proxies, the output has objects with all
defaults, and their state under "status". You can use it as a file of the store, which ignores status. Problems of the
store are written to stderr.

-o wide adds columns, and abbreviates nothing. -o name writes KIND/NAME of each object, which every command accepts,
including get KIND/NAME. -o jsonpath=TEMPLATE applies a kubectl template: with NAME or --watch to each object, such as
{.spec.networking.address}, otherwise to the list, such as {.items[*].name}.

--watch writes each object that changes, until a signal; -o json then writes one document after the other. A removed
object is written in its last state, with the field "removed": true. Problems of the store are written when they appear,
and when they are resolved.`,
	}
	for _, r := range collections {
		cmd.AddCommand(c.getOne(r))
	}
	return cmd
}

func (c *cli) getOne(r collection) *cobra.Command {
	filter := &adminv1.Filter{}
	cmd := &cobra.Command{
		Use:     r.plural() + " [NAME]",
		Aliases: r.others(),
		Short:   "Show " + r.plural(),
		Long:    "Show all " + r.plural() + ", or only NAME.\n\n" + r.columns,
		Args:    cobra.MaximumNArgs(1),
		Example: fmt.Sprintf("  sondectl get %s\n  sondectl get %s NAME -o yaml\n  sondectl get %s -o jsonpath='{.items[*].name}'\n  sondectl get %s --watch", r.plural(), r.singular, r.plural(), r.plural()),
	}
	var output getOutput
	output.add(cmd)
	watch := false
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print each object that changes, until a signal")
	if r.inMeshes {
		c.addMesh(cmd, &filter.Mesh, "only in this `MESH`")
	}
	cmd.ValidArgsFunction = c.completeNames(filter, r)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			_, name, err := names.Parse(args[0], r.singular)
			if err != nil { // an unset variable in a script makes NAME empty, which would select all
				return err
			}
			filter.Name = name
		}
		if err := output.check(filter.Name != "" || watch); err != nil {
			return err
		}
		found, err := c.list(cmd.Context(), r, filter)
		if err != nil {
			return err
		}
		reportTail(cmd, found.tail)
		reportProbesLeftOut(cmd, found.probesLeftOut)
		if filter.Name != "" && len(found.rows) == 0 {
			return notFound(string(r.singular), filter, found.tail.GetNear())
		}
		if watch {
			return c.watch(cmd, r, filter, &output, found)
		}
		return output.write(&c.out, r, found, filter.Name != "")
	}
	return cmd
}

// addMesh adds the flag --mesh; name is its default.
func (c *cli) addMesh(cmd *cobra.Command, name *string, usage string) {
	cmd.Flags().Var(&names.Flag{To: name, Among: []names.Kind{names.Mesh}}, "mesh", usage)
	settings.Must(cmd.RegisterFlagCompletionFunc("mesh", c.completeMeshes))
}

func (c *cli) list(ctx context.Context, r collection, filter *adminv1.Filter) (found *listing, err error) {
	err = c.call(ctx, func(ctx context.Context, api adminv1.AdminServiceClient) (err error) {
		found, err = r.list(ctx, api, filter)
		return err
	})
	return found, err
}

// notFound returns the error for an unknown name, with the suggestion near unless it is "".
func notFound(what string, filter *adminv1.Filter, near string) error {
	text := fmt.Sprintf("%s %q", what, filter.GetName())
	if filter.GetMesh() != "" {
		text += fmt.Sprintf(" of mesh %q", filter.GetMesh())
	}
	return errors.New(text + " not found" + didYouMean(near))
}

// didYouMean returns the suggestion at the end of a not-found message, "" without one.
func didYouMean(near string) string {
	if near == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", near)
}

// reportTail writes to stderr how many entries are omitted, and the problems of the store.
func reportTail(cmd *cobra.Command, tail *adminv1.Tail) {
	reportChanges(cmd, nil, tail)
}

// reportProbesLeftOut writes to stderr how many probes are omitted.
func reportProbesLeftOut(cmd *cobra.Command, n uint32) {
	if n > 0 {
		cmd.PrintErrf("sondectl: %s\n", describe.ProbesLeftOutText(n))
	}
}

// reportChanges is reportTail without the lines that it has already written.
func reportChanges(cmd *cobra.Command, before, now *adminv1.Tail) {
	if n := now.GetLeftOut(); n > 0 && n != before.GetLeftOut() {
		cmd.PrintErrf("sondectl: %d more are not shown: set a name or --mesh\n", n)
	}
	if missing := now.GetMissingReplicas(); len(missing) > 0 && !slices.Equal(missing, before.GetMissingReplicas()) {
		cmd.PrintErrf("sondectl: replica %s of the control plane is disconnected: recent reports of its agents and Envoys are missing\n", printer.OneLine(strings.Join(missing, ", ")))
	}
	was, is := problemsOf(before), problemsOf(now)
	for _, p := range is {
		if !slices.Contains(was, p) {
			cmd.PrintErrf("sondectl: store: %s\n", p)
		}
	}
	for _, p := range was {
		if !slices.Contains(is, p) {
			cmd.PrintErrf("sondectl: store: resolved: %s\n", p)
		}
	}
}

// problemsOf returns the problems of the store, one per line.
func problemsOf(tail *adminv1.Tail) []string {
	var lines []string
	for _, p := range tail.GetProblems() {
		severity := "error"
		if p.GetWarning() {
			severity = "warning"
		}
		lines = append(lines, severity+": "+printer.OneLine(describe.Place(p)+p.GetText()))
	}
	return lines
}

// object is a Mesh, a Dataplane, a Service or a MeshService with its status, in a format that the store can read.
type object struct {
	Type   mesh.Kind         `json:"type"`
	Mesh   string            `json:"mesh,omitempty"`
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Spec   any               `json:"spec"`
	Status any               `json:"status"`
}

// newObject decodes an object of the API into model for the table, and returns the object with its status.
func newObject(kind mesh.Kind, body []byte, model, status any) (*object, error) {
	o := &object{Type: kind, Status: status}
	if err := json.Unmarshal(body, model); err != nil {
		return nil, fmt.Errorf("decode %s: %w", kind, mesh.ExplainJSON("", body, model))
	}
	if err := json.Unmarshal(body, o); err != nil {
		return nil, fmt.Errorf("decode %s: %w", kind, mesh.ExplainJSON("", body, o))
	}
	return o, nil
}
