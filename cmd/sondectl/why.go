package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/why"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const whyHelp = `Without a name it is sondectl status.

` + whyPodHelp + `

Of each endpoint of the service or MeshService NAME, and of each inbound of the dataplane NAME, it says whether it gets traffic, and what speaks against it; of
each outbound of the dataplane whether its Envoy listens there, and whether the service that it goes to has an endpoint. KIND/NAME, as get -o name writes it, is
of that kind alone; of mesh/NAME it is sondectl status --mesh NAME.

KIND       service, meshservice or dataplane, where NAME is several of them
SERVICE    a port of a MeshService is the service NAME_msvc_PORT
ENDPOINT   address and port that clients connect to; none if the service has no endpoint
DATAPLANE  whose inbound it is; none for an endpoint without a sidecar
STATE      ready; unchecked: as ready, and nobody checks its application; draining: it gets traffic while no endpoint is ready; stopped: its agent has drained and ended; not-ready;
           outbound-ready: the application may call SERVICE there; outbound-not-ready: Envoy does not listen there; outbound-no-endpoints: Envoy listens, and
           calls fail, since no endpoint of SERVICE gets traffic; no-endpoints; no-inbounds; no-ports; unknown: a
           proxy without a dataplane. Each reason, what else is wrong with the proxy, and that one which drains gets traffic, is on a line of its own. A
           MeshService without endpoints says which it is: there is none of that name, it has not that port, it selects no Dataplane, or no inbound has its targetPort`

// finding is what why says of one endpoint.
type finding struct {
	// Kind of the object that was asked for.
	Kind      names.Kind `json:"kind"`
	Mesh      string     `json:"mesh"`
	Services  []string   `json:"services,omitempty"`
	Endpoint  string     `json:"endpoint,omitempty"`
	Dataplane string     `json:"dataplane,omitempty"`
	State     string     `json:"state"`
	// Serves is whether it gets traffic while draining.
	Serves  bool     `json:"serves,omitempty"`
	Reasons []string `json:"reasons,omitempty"`
}

func (c *cli) why() *cobra.Command {
	filter := &adminv1.Filter{}
	cmd := &cobra.Command{
		Use:     "why [NAME|KIND/NAME]",
		Short:   "Say why a pod is not ready, or why the endpoints of a service or a dataplane get traffic or not",
		Long:    whyHelp,
		Example: "  sondectl why\n  sondectl why pod/web-0 -n shop\n  sondectl why backend\n  sondectl why dataplane/web-1 --mesh default -o json",
		Args:    cobra.MaximumNArgs(1),
	}
	output := printer.AddFormat(cmd, printer.Table, printer.YAML, printer.JSON)
	c.addMesh(cmd, &filter.Mesh, "only in this `MESH`")
	pods := c.newDrainTarget()
	pods.objects.AddNamespace(cmd.Flags(), "a pod")
	named := c.completeNames(filter, services, meshServices, dataplanes)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if word, _, _ := strings.Cut(prefix, "/"); word != prefix && resourceOf(word) != nil {
			return pods.completeTargets(cmd, args, prefix)
		}
		return named(cmd, args, prefix)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ofMesh, ofPods := cmd.Flags().Changed("mesh"), cmd.Flags().Changed(cluster.FlagObjectsNamespace)
		if len(args) == 0 {
			return c.writeStatus(cmd.Context(), statusOf{filter.GetMesh(), cmd.Flags().Lookup(cluster.FlagObjectsNamespace).Value.String()}, output.Value, false)
		}
		kind, name, err := names.Parse(args[0], whyKinds...)
		switch {
		case err != nil:
			return err
		case (kind == names.Pod || kind == names.Mesh) && ofMesh:
			return settings.Usagef("--mesh: is for NAME, and %q is a %s", args[0], kind)
		case kind == names.Pod:
			return c.whyPod(cmd, &pods.objects, name, output.Value)
		case ofPods:
			return settings.Usagef("--namespace: is for pod/NAME, and %q is a name", args[0])
		case kind == names.Mesh:
			return c.writeStatus(cmd.Context(), statusOf{mesh: name}, output.Value, false)
		}
		filter.Name = name
		return c.whyNamed(cmd, filter, kind, output.Value)
	}
	return cmd
}

// whyKinds are the kinds that why reads.
var whyKinds = []names.Kind{names.Service, names.MeshService, names.Dataplane, names.Mesh, names.Pod}

// whyNamed writes what speaks against all that has the name, or what is of one kind.
func (c *cli) whyNamed(cmd *cobra.Command, filter *adminv1.Filter, kind names.Kind, f printer.Format) error {
	var found *subject
	err := c.call(cmd.Context(), func(ctx context.Context, api adminv1.AdminServiceClient) (err error) {
		found, err = askFor(ctx, api, filter)
		return err
	})
	if err != nil {
		return err
	}
	reportTail(cmd, found.services.GetTail())
	if n := found.leftOut; n > 0 {
		cmd.PrintErrf("sondectl: %d more proxies were not looked at: what is wrong with their agents is not shown\n", n)
	}
	all, err := found.findings(filter.GetName())
	if err != nil {
		return err
	}
	what := "service, meshservice or dataplane"
	if kind != "" {
		what = string(kind)
		all = slices.DeleteFunc(all, func(f finding) bool { return f.Kind != kind })
	}
	if len(all) == 0 {
		return notFound(what, filter, found.near(filter.GetName()))
	}
	return whyListing(all).write(&c.out, f)
}

func whyListing(all []finding) *listing {
	l := &listing{header: []string{"MESH", "SERVICE", "ENDPOINT", "DATAPLANE", "STATE"}}
	several := slices.ContainsFunc(all, func(f finding) bool { return f.Kind != all[0].Kind })
	if several {
		l.header = slices.Insert(l.header, 0, "KIND")
	}
	for _, f := range all {
		cells := []string{f.Mesh, printer.FirstFew(f.Services, ","), f.Endpoint, f.Dataplane, f.State}
		if several {
			cells = slices.Insert(cells, 0, string(f.Kind))
		}
		l.documents = append(l.documents, f)
		l.rows = append(l.rows, printer.Row{Cells: cells, Notes: f.Reasons})
	}
	return l
}

// subject is all that the control plane has of a name, and the proxies.
type subject struct {
	services     *adminv1.ListServicesResponse
	meshServices *adminv1.ListMeshServicesResponse
	dataplanes   *adminv1.ListDataplanesResponse
	proxies      map[mesh.ID]*adminv1.Proxy
	// called are the services that outbounds of the dataplanes go to.
	called map[mesh.ID]*adminv1.Service
	// leftOut is how many proxies the control plane has not told of.
	leftOut uint32
}

func askFor(ctx context.Context, api adminv1.AdminServiceClient, filter *adminv1.Filter) (*subject, error) {
	s := &subject{proxies: map[mesh.ID]*adminv1.Proxy{}, called: map[mesh.ID]*adminv1.Service{}}
	var err error
	if s.services, err = api.ListServices(ctx, &adminv1.ListServicesRequest{Filter: filter, Ports: true}); err != nil {
		return nil, err
	}
	if s.meshServices, err = api.ListMeshServices(ctx, &adminv1.ListMeshServicesRequest{Filter: filter}); err != nil {
		return nil, err
	}
	if s.dataplanes, err = api.ListDataplanes(ctx, &adminv1.ListDataplanesRequest{Filter: filter}); err != nil {
		return nil, err
	}
	if err := s.askForCalled(ctx, api); err != nil {
		return nil, err
	}
	of := filter
	if len(s.services.GetServices()) > 0 { // their endpoints are of any proxy
		of = &adminv1.Filter{Mesh: filter.GetMesh()}
	}
	listed, err := api.ListProxies(ctx, &adminv1.ListProxiesRequest{Filter: of})
	if err != nil {
		return nil, err
	}
	s.leftOut = listed.GetTail().GetLeftOut()
	for _, p := range listed.GetProxies() {
		s.proxies[mesh.MakeID(p.GetMesh(), p.GetName())] = p
	}
	return s, nil
}

// near returns what may have been meant by a name that nothing has. Of two as near a Dataplane comes first: it is there, while a service may
// be one that outbounds name alone.
func (s *subject) near(name string) string {
	var known []string
	for _, t := range []*adminv1.Tail{s.dataplanes.GetTail(), s.meshServices.GetTail(), s.services.GetTail()} {
		if t.GetNear() != "" {
			known = append(known, t.GetNear())
		}
	}
	near, _ := mesh.Nearest(name, known)
	return near
}

func (s *subject) findings(name string) ([]finding, error) {
	var all []finding
	for _, svc := range s.services.GetServices() {
		all = append(all, s.ofService(name, svc)...)
	}
	for _, entry := range s.meshServices.GetMeshServices() {
		if len(entry.GetPorts()) > 0 {
			continue // these are services
		}
		var head mesh.Meta
		if err := decode(entry.GetObject(), &head); err != nil {
			return nil, err
		}
		all = append(all, finding{Kind: names.MeshService, Mesh: head.Mesh, State: "no-ports", Reasons: []string{"it has no port that a backendRef could name"}})
	}
	for _, entry := range s.dataplanes.GetDataplanes() {
		found, err := s.ofDataplane(entry)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	for _, id := range slices.Sorted(maps.Keys(s.proxies)) {
		if p := s.proxies[id]; p.GetName() == name && !p.GetKnown() {
			all = append(all, finding{
				Kind: names.Dataplane, Mesh: p.GetMesh(), Dataplane: name, State: "unknown",
				Reasons: append([]string{"there is no such Dataplane, only a proxy that asks for it"}, reasons(adminv1.Endpoint_NOT_READY, "", "", p)...),
			})
		}
	}
	return all, nil
}

// ofService returns a finding for each endpoint of a service, or one for a service without any.
func (s *subject) ofService(name string, svc *adminv1.Service) []finding {
	kind, called := names.Service, []string{svc.GetName()}
	if svc.GetName() != name {
		kind = names.MeshService
	}
	if len(svc.GetEndpoints()) == 0 {
		return []finding{{Kind: kind, Mesh: svc.GetMesh(), Services: called, State: "no-endpoints", Reasons: svc.GetReasons()}}
	}
	all := make([]finding, 0, len(svc.GetEndpoints()))
	for _, e := range svc.GetEndpoints() {
		p := s.proxies[mesh.MakeID(svc.GetMesh(), e.GetDataplane())]
		serves := why.Nevertheless(svc, e)
		f := finding{kind, svc.GetMesh(), called, e.GetAddress(), e.GetDataplane(), describe.Health(e.GetHealth()), serves != "", reasons(e.GetHealth(), e.GetReason(), e.GetAddress(), p)}
		if f.Serves {
			f.Reasons = append(f.Reasons, "it gets traffic nevertheless: "+serves)
		}
		if e.GetUnchecked() {
			f.setUnchecked()
		}
		all = append(all, f)
	}
	return all
}

// setUnchecked marks the endpoint as unchecked.
func (f *finding) setUnchecked() {
	f.State = uncheckedWord
	f.Reasons = append([]string{"nobody checks its application, there is no serviceProbe: it gets traffic whether it answers or not"}, f.Reasons...)
}

// ofDataplane returns a finding for each inbound of a Dataplane, or one for a Dataplane without any.
func (s *subject) ofDataplane(entry *adminv1.Dataplane) ([]finding, error) {
	var d mesh.Dataplane
	if err := decode(entry.GetObject(), &d); err != nil {
		return nil, err
	}
	p := s.proxies[d.ID()]
	all, outbounds := make([]finding, 0, 1), []finding(nil)
	for i, in := range d.Spec.Networking.Inbound {
		if i >= len(entry.GetInbounds()) {
			break // the control plane has told less than it should
		}
		all = append(all, ofInbound(&d, &in, entry.GetInbounds()[i], p))
	}
	if !entry.GetStopped() {
		outbounds = s.ofOutbounds(&d, entry)
	}
	if len(all) == 0 && len(outbounds) == 0 {
		reason := ""
		if p.GetAgentState().GetPhase() == adminv1.AgentState_NEVER_JOINED {
			reason = "its proxy has never joined"
		}
		all = append(all, finding{Kind: names.Dataplane, Mesh: d.Mesh, Dataplane: d.Name, State: "no-inbounds", Reasons: reasons(adminv1.Endpoint_READY, reason, "", p)})
	}
	return append(all, outbounds...), nil
}

// ofInbound returns the finding for an inbound of a Dataplane, whose health is h.
func ofInbound(d *mesh.Dataplane, in *mesh.Inbound, h *adminv1.InboundHealth, p *adminv1.Proxy) finding {
	at := mesh.JoinHostPort(in.Address, in.Port)
	f := finding{
		names.Dataplane, d.Mesh, h.GetServices(), at, d.Name, describe.Health(h.GetHealth()), len(h.GetServes()) > 0, reasons(h.GetHealth(), h.GetReason(), at, p),
	}
	if f.Serves {
		f.Reasons = append(f.Reasons, servesText(h))
	}
	if h.GetUnchecked() {
		f.setUnchecked()
	}
	switch tag := in.Tags.Service(); {
	case len(f.Services) == 0 && tag != "":
		f.Services = []string{tag}
	case len(f.Services) == 0 && in.State != mesh.InboundIgnored: // of such a one its state is reason enough
		f.Reasons = append(f.Reasons, "no service has it: it has no tag "+mesh.TagService+", and no MeshService or Service names it")
	}
	return f
}

// reasons returns in words what speaks against an endpoint. p is nil without a sidecar.
func reasons(h adminv1.Endpoint_Health, reason, at string, p *adminv1.Proxy) []string {
	var all []string
	if reason != "" {
		all = append(all, reason)
	}
	switch drain := p.GetDrain(); {
	case drain != "":
		all = append(all, "draining: "+drain)
	case p.GetDraining() || h == adminv1.Endpoint_DRAINING && reason == "":
		all = append(all, "draining: its agent, or its owner, has said that it ends")
	}
	if p == nil {
		return all
	}
	if why := describe.Connection(p); why != "" {
		all = append(all, why)
	}
	if refusal := p.GetAgentState().GetRefusal(); refusal != "" {
		all = append(all, "cannot join: "+refusal)
	}
	for kind, nack := range describe.Nacks(p) {
		if !ofOtherInbound(nack, at) && !strings.Contains(reason, nack.GetReason()) {
			all = append(all, describe.Nack(kind, nack))
		}
	}
	return all
}

// ofOtherInbound says whether Envoy has refused the listener of an inbound at another address.
func ofOtherInbound(nack *adminv1.Nack, at string) bool {
	address, ok := strings.CutPrefix(nack.GetResource(), "inbound:")
	_, err := netip.ParseAddrPort(address)
	return ok && err == nil && address != at
}

// decode decodes an object of the API.
func decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode an object: %w", mesh.ExplainJSON("", body, into))
	}
	return nil
}
