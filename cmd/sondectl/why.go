package main

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

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

const whyHelp = `Without a name, the command is the same as sondectl status.

` + whyPodHelp + `

For each endpoint of the service or MeshService NAME, and each inbound of the dataplane NAME, the command shows whether
it gets traffic, and otherwise why not. For each outbound of the dataplane it shows whether Envoy listens there, and
whether the outbound's service has an endpoint. KIND/NAME, as get -o name writes it, selects one kind; mesh/NAME is
sondectl status --mesh NAME.

KIND       service, meshservice or dataplane, if several of them are called NAME
SERVICE    if it is not NAME; a port of a MeshService is the service NAME_msvc_PORT
ENDPOINT   address and port that clients connect to; none if the service has no endpoint
DATAPLANE  owner of the inbound, if it is not NAME; none for an endpoint without a sidecar
STATE      ready
           unchecked              ready, and nothing checks the application
           draining               gets traffic only while no endpoint is ready
           stopped                the agent has drained and stopped
           not-ready
           outbound-ready         the application can call SERVICE there
           outbound-not-ready     Envoy does not listen there
           outbound-no-endpoints  Envoy listens, but calls fail, since no endpoint of SERVICE gets traffic
           no-endpoints, no-inbounds, no-ports
           unknown                a proxy without a dataplane

Separate lines show each reason, other problems of the proxy, and whether a draining endpoint gets traffic. For a
MeshService without endpoints they show the cause: the name is unknown, the port is missing, the MeshService selects no
Dataplane, or no inbound has its targetPort.

-o wide has all columns.`

// finding is the result for one endpoint.
type finding struct {
	// Kind of the requested object.
	Kind      names.Kind `json:"kind"`
	Mesh      string     `json:"mesh"`
	Services  []string   `json:"services,omitempty"`
	Endpoint  string     `json:"endpoint,omitempty"`
	Dataplane string     `json:"dataplane,omitempty"`
	State     string     `json:"state"`
	// Serves says whether a draining endpoint gets traffic.
	Serves  bool     `json:"serves,omitempty"`
	Reasons []string `json:"reasons,omitempty"`
	// Probe is the serviceProbe of an inbound, nil if its agent has not reported it.
	Probe *describe.Probe `json:"probe,omitempty"`
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
	output := printer.AddFormat(cmd, printer.Table, printer.Wide, printer.YAML, printer.JSON)
	c.addMesh(cmd, &filter.Mesh, "only in this `MESH`")
	pods := c.newDrainTarget()
	pods.objects.AddNamespace(cmd.Flags(), "a pod")
	named := c.completeNames(filter, services, meshServices, dataplanes)
	cmd.ValidArgsFunction = func(
		cmd *cobra.Command, args []string, prefix string,
	) ([]cobra.Completion, cobra.ShellCompDirective) {
		if word, _, _ := strings.Cut(prefix, "/"); word != prefix && resourceOf(word) != nil {
			return pods.completeTargets(cmd, args, prefix)
		}
		return named(cmd, args, prefix)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ofMesh, ofPods := cmd.Flags().Changed("mesh"), cmd.Flags().Changed(cluster.FlagObjectsNamespace)
		if len(args) == 0 {
			of := statusOf{filter.GetMesh(), cmd.Flags().Lookup(cluster.FlagObjectsNamespace).Value.String()}
			return c.writeStatus(cmd.Context(), of, output.Value, false)
		}
		kind, name, err := names.Parse(args[0], whyKinds...)
		switch {
		case err != nil:
			return err
		case (kind == names.Pod || kind == names.Mesh) && ofMesh:
			return settings.Usagef("--mesh: must only be set for NAME, and %q is a %s", args[0], kind)
		case kind == names.Pod:
			return c.whyPod(cmd, &pods.objects, name, output.Value)
		case ofPods:
			return settings.Usagef("--namespace: must only be set for pod/NAME, and %q is a name", args[0])
		case kind == names.Mesh:
			return c.writeStatus(cmd.Context(), statusOf{mesh: name}, output.Value, false)
		}
		filter.Name = name
		return c.whyNamed(cmd, filter, kind, output.Value)
	}
	return cmd
}

// whyKinds are the kinds that why accepts.
var whyKinds = []names.Kind{names.Service, names.MeshService, names.Dataplane, names.Mesh, names.Pod}

// whyNamed writes the findings about all objects with a name, or about one kind of them.
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
		cmd.PrintErrf("sondectl: %d more proxies are not included: problems of their agents are not shown\n", n)
	}
	reportProbesLeftOut(cmd, describe.ProbesLeftOut(slices.Collect(maps.Values(found.proxies))))
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
	return whyListing(all, filter.GetName(), f == printer.Wide).write(&c.out, f)
}

// whyListing lists findings about a name. Without -o wide, it omits columns that only repeat the name.
func whyListing(all []finding, name string, wide bool) *listing {
	l := &listing{rows: make([]printer.Row, len(all))}
	for _, column := range []struct {
		name string
		of   func(finding) string
		// known is the value that is already known, possibly "".
		known string
	}{
		{"KIND", func(f finding) string { return string(f.Kind) }, string(all[0].Kind)},
		{"MESH", func(f finding) string { return f.Mesh }, ""},
		{"SERVICE", func(f finding) string { return printer.First(1, f.Services, ",") }, name},
		{"ENDPOINT", func(f finding) string { return f.Endpoint }, ""},
		{"DATAPLANE", func(f finding) string { return f.Dataplane }, name},
		{"STATE", func(f finding) string { return f.State }, ""},
	} {
		if !wide && column.known != "" && !slices.ContainsFunc(all, func(f finding) bool { return column.of(f) != column.known }) {
			continue
		}
		l.header = append(l.header, column.name)
		for i, f := range all {
			cell := column.of(f)
			if wide && column.name == "SERVICE" {
				cell = strings.Join(f.Services, ",")
			}
			l.rows[i].Cells = append(l.rows[i].Cells, cell)
		}
	}
	for i, f := range all {
		l.rows[i].Notes = f.Reasons
		l.documents = append(l.documents, f)
	}
	return l
}

// subject holds all objects with a name, and the proxies.
type subject struct {
	services     *adminv1.ListServicesResponse
	meshServices *adminv1.ListMeshServicesResponse
	dataplanes   *adminv1.ListDataplanesResponse
	proxies      map[mesh.ID]*adminv1.Proxy
	// called are the services of the dataplanes' outbounds.
	called map[mesh.ID]*adminv1.Service
	// leftOut counts the proxies that the control plane has omitted.
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
	if len(s.services.GetServices()) > 0 { // any proxy may be their endpoint
		of = &adminv1.Filter{Mesh: filter.GetMesh()}
	}
	listed, err := api.ListProxies(ctx, &adminv1.ListProxiesRequest{Filter: of, Verdicts: true})
	if err != nil {
		return nil, err
	}
	s.leftOut = listed.GetTail().GetLeftOut()
	for _, p := range listed.GetProxies() {
		s.proxies[mesh.MakeID(p.GetMesh(), p.GetName())] = p
	}
	return s, nil
}

// near returns a suggestion for an unknown name. Among equally similar names it prefers a Dataplane: a service may
// exist only as the name in outbounds.
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
			continue // names of ports are services
		}
		var head mesh.Meta
		if err := decode(entry.GetObject(), &head); err != nil {
			return nil, err
		}
		all = append(all, finding{
			Kind: names.MeshService, Mesh: head.Mesh, State: "no-ports", Reasons: []string{"it has no port for a backendRef"},
		})
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
				Reasons: append([]string{"the Dataplane does not exist, but its proxy is connected"}, reasons(adminv1.Endpoint_NOT_READY, "", "", p)...),
			})
		}
	}
	return all, nil
}

// ofService returns a finding for each endpoint of a service, or one finding if it has none.
func (s *subject) ofService(name string, svc *adminv1.Service) []finding {
	kind, called := names.Service, []string{svc.GetName()}
	if svc.GetName() != name {
		kind = names.MeshService
	}
	if len(svc.GetEndpoints()) == 0 {
		return []finding{{
			Kind: kind, Mesh: svc.GetMesh(), Services: called, State: "no-endpoints", Reasons: svc.GetReasons(),
		}}
	}
	all := make([]finding, 0, len(svc.GetEndpoints()))
	for _, e := range svc.GetEndpoints() {
		p := s.proxies[mesh.MakeID(svc.GetMesh(), e.GetDataplane())]
		serves := why.Nevertheless(svc, e)
		f := finding{kind, svc.GetMesh(), called, e.GetAddress(), e.GetDataplane(), describe.Health(e.GetHealth()), serves != "", reasons(e.GetHealth(), e.GetReason(), e.GetAddress(), p), probeOf(p, e.GetAddress())}
		if f.Serves {
			f.Reasons = append(f.Reasons, "it still gets traffic: "+serves)
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
	f.Reasons = append([]string{"nothing checks its application, it has no serviceProbe: it gets traffic whether it answers or not"}, f.Reasons...)
}

// ofDataplane returns a finding for each inbound of a Dataplane, or one finding if it has none.
func (s *subject) ofDataplane(entry *adminv1.Dataplane) ([]finding, error) {
	var d mesh.Dataplane
	if err := decode(entry.GetObject(), &d); err != nil {
		return nil, err
	}
	p := s.proxies[d.ID()]
	all, outbounds := make([]finding, 0, 1), []finding(nil)
	for i, in := range d.Spec.Networking.Inbound {
		if i >= len(entry.GetInbounds()) {
			break // the control plane's answer is incomplete
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
		} else if d.Spec.Networking.Gateway != nil {
			reason = "it is a gateway: its application accepts connections itself"
		}
		all = append(all, finding{Kind: names.Dataplane, Mesh: d.Mesh, Dataplane: d.Name, State: "no-inbounds", Reasons: reasons(adminv1.Endpoint_READY, reason, "", p)})
	}
	return append(all, outbounds...), nil
}

// ofInbound returns the finding for an inbound of a Dataplane with health h.
func ofInbound(d *mesh.Dataplane, in *mesh.Inbound, h *adminv1.InboundHealth, p *adminv1.Proxy) finding {
	at := mesh.JoinHostPort(in.Address, in.Port)
	f := finding{
		names.Dataplane, d.Mesh, h.GetServices(), at, d.Name, describe.Health(h.GetHealth()), len(h.GetServes()) > 0,
		reasons(h.GetHealth(), h.GetReason(), at, p), probeOf(p, at),
	}
	if f.Probe != nil && f.Probe.Fails() {
		f.Reasons = append(f.Reasons, f.Probe.Lasts(time.Now()))
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
	case len(f.Services) == 0 && in.State != mesh.InboundIgnored: // the state already says why
		f.Reasons = append(f.Reasons,
			"it belongs to no service: it has no tag "+mesh.TagService+", and no MeshService or Service selects it")
	}
	return f
}

// reasons describes why an endpoint gets no traffic. p is nil without a sidecar.
func reasons(h adminv1.Endpoint_Health, reason, at string, p *adminv1.Proxy) []string {
	var all []string
	if reason != "" {
		all = append(all, reason)
	}
	switch drain := p.GetDrain(); {
	case drain != "":
		all = append(all, "draining: "+drain)
	case p.GetDraining() || h == adminv1.Endpoint_DRAINING && reason == "":
		all = append(all, describe.DrainReported)
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

// ofOtherInbound reports whether Envoy has rejected the listener of a different inbound.
func ofOtherInbound(nack *adminv1.Nack, at string) bool {
	address, ok := strings.CutPrefix(nack.GetResource(), "inbound:")
	_, err := netip.ParseAddrPort(address)
	return ok && err == nil && address != at
}
