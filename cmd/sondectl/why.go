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
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const whyHelp = whyPodHelp + `

Of each endpoint of the service or MeshService NAME, and of each inbound of the dataplane NAME, it says whether it gets traffic, and what speaks against it.

KIND       service, meshservice or dataplane, where NAME is several of them
SERVICE    a port of a MeshService is the service NAME_msvc_PORT
ENDPOINT   address and port that clients connect to; none if the service has no endpoint
DATAPLANE  whose inbound it is; none for an endpoint without a sidecar
STATE      ready; draining: it gets traffic while no endpoint is ready; not-ready; no-endpoints; no-inbounds; no-ports; unknown: a proxy without a
           dataplane. Each reason, and what else is wrong with the proxy, is on a line of its own. A MeshService without endpoints says which it
           is: there is none of that name, it has not that port, it selects no Dataplane, or no inbound has its targetPort`

// finding is what why says of one endpoint.
type finding struct {
	// Kind of the object that was asked for.
	Kind      string   `json:"kind"`
	Mesh      string   `json:"mesh"`
	Services  []string `json:"services,omitempty"`
	Endpoint  string   `json:"endpoint,omitempty"`
	Dataplane string   `json:"dataplane,omitempty"`
	State     string   `json:"state"`
	Reasons   []string `json:"reasons,omitempty"`
}

func (c *cli) why() *cobra.Command {
	filter := &adminv1.Filter{}
	cmd := &cobra.Command{
		Use:     "why NAME|pod/NAME",
		Short:   "Say why a pod is not ready, or why the endpoints of a service or a dataplane get traffic or not",
		Long:    whyHelp,
		Example: "  sondectl why pod/web-0 -n shop\n  sondectl why backend\n  sondectl why web-1 --mesh default -o json",
		Args:    cobra.ExactArgs(1),
	}
	output := printer.AddFormat(cmd, printer.Table, printer.YAML, printer.JSON)
	cmd.Flags().StringVar(&filter.Mesh, "mesh", "", "only in this `MESH`")
	settings.Must(cmd.RegisterFlagCompletionFunc("mesh", c.completeMeshes))
	pods := c.newDrainTarget()
	pods.objects.AddNamespace(cmd.Flags(), "a pod")
	names := c.completeNames(filter, services(), meshServices(), dataplanes())
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if strings.Contains(prefix, "/") {
			return pods.completeTargets(cmd, args, prefix)
		}
		return names(cmd, args, prefix)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch name, isPod, err := podOf(args[0]); {
		case err != nil:
			return err
		case isPod && cmd.Flags().Changed("mesh"):
			return settings.Usagef("--mesh: is for NAME, and %q is a pod", args[0])
		case isPod:
			return c.whyPod(cmd, &pods.objects, name, output.Value)
		case cmd.Flags().Changed(cluster.FlagObjectsNamespace):
			return settings.Usagef("--namespace: is for pod/NAME, and %q is a name", args[0])
		}
		if filter.Name = args[0]; filter.Name == "" {
			return settings.Usagef("NAME: must not be empty")
		}
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
		all, err := found.findings(filter.Name)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return notFound("service, meshservice or dataplane", filter, found.near(filter.Name))
		}
		return whyListing(all).write(&c.out, output.Value)
	}
	return cmd
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
			cells = slices.Insert(cells, 0, f.Kind)
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
	// leftOut is how many proxies the control plane has not told of.
	leftOut uint32
}

func askFor(ctx context.Context, api adminv1.AdminServiceClient, filter *adminv1.Filter) (*subject, error) {
	s := &subject{proxies: map[mesh.ID]*adminv1.Proxy{}}
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
		if err := json.Unmarshal(entry.GetObject(), &head); err != nil {
			return nil, fmt.Errorf("decode a MeshService: %w", mesh.ExplainJSON("", entry.GetObject(), &head))
		}
		all = append(all, finding{Kind: meshServices().singular, Mesh: head.Mesh, State: "no-ports", Reasons: []string{"it has no port that a backendRef could name"}})
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
				Kind: dataplanes().singular, Mesh: p.GetMesh(), Dataplane: name, State: "unknown",
				Reasons: append([]string{"there is no such Dataplane, only a proxy that asks for it"}, reasons(adminv1.Endpoint_NOT_READY, "", "", p)...),
			})
		}
	}
	return all, nil
}

// ofService returns a finding for each endpoint of a service, or one for a service without any.
func (s *subject) ofService(name string, svc *adminv1.Service) []finding {
	kind, names := services().singular, []string{svc.GetName()}
	if svc.GetName() != name {
		kind = meshServices().singular
	}
	if len(svc.GetEndpoints()) == 0 {
		return []finding{{Kind: kind, Mesh: svc.GetMesh(), Services: names, State: "no-endpoints", Reasons: svc.GetReasons()}}
	}
	all := make([]finding, 0, len(svc.GetEndpoints()))
	for _, e := range svc.GetEndpoints() {
		p := s.proxies[mesh.MakeID(svc.GetMesh(), e.GetDataplane())]
		all = append(all, finding{kind, svc.GetMesh(), names, e.GetAddress(), e.GetDataplane(), stateOf(e.GetHealth()), reasons(e.GetHealth(), e.GetReason(), e.GetAddress(), p)})
	}
	return all
}

// ofDataplane returns a finding for each inbound of a Dataplane, or one for a Dataplane without any.
func (s *subject) ofDataplane(entry *adminv1.Dataplane) ([]finding, error) {
	var d mesh.Dataplane
	if err := json.Unmarshal(entry.GetObject(), &d); err != nil {
		return nil, fmt.Errorf("decode a Dataplane: %w", mesh.ExplainJSON("", entry.GetObject(), &d))
	}
	kind, p := dataplanes().singular, s.proxies[d.ID()]
	all := make([]finding, 0, 1)
	for i, in := range d.Spec.Networking.Inbound {
		if i >= len(entry.GetInbounds()) {
			break // the control plane has told less than it should
		}
		h := entry.GetInbounds()[i]
		at := mesh.JoinHostPort(in.Address, in.Port)
		f := finding{kind, d.Mesh, h.GetServices(), at, d.Name, stateOf(h.GetHealth()), reasons(h.GetHealth(), h.GetReason(), at, p)}
		switch tag := in.Tags.Service(); {
		case len(f.Services) == 0 && tag != "":
			f.Services = []string{tag}
		case len(f.Services) == 0 && in.State != mesh.InboundIgnored: // of such a one its state is reason enough
			f.Reasons = append(f.Reasons, "no service has it: it has no tag "+mesh.TagService+", and no MeshService or Service names it")
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		reason := ""
		if p.GetAgentState().GetPhase() == adminv1.AgentState_NEVER_JOINED {
			reason = "its proxy has never joined"
		}
		all = append(all, finding{Kind: kind, Mesh: d.Mesh, Dataplane: d.Name, State: "no-inbounds", Reasons: reasons(adminv1.Endpoint_READY, reason, "", p)})
	}
	return all, nil
}

// stateOf returns a health as one word in lower case.
func stateOf(h adminv1.Endpoint_Health) string {
	return strings.ReplaceAll(strings.ToLower(h.String()), "_", "-")
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
	if why := connectionReason(p); why != "" {
		all = append(all, why)
	}
	if refusal := p.GetAgentState().GetRefusal(); refusal != "" {
		all = append(all, "cannot join: "+refusal)
	}
	for _, stream := range p.GetStreams() {
		for _, t := range stream.GetTypes() {
			for _, nack := range t.GetNacks() {
				if !ofOtherInbound(nack, at) && !strings.Contains(reason, nack.GetReason()) {
					all = append(all, nackNote(t.GetKind(), nack))
				}
			}
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

// connectionReason says that the agent of a proxy is not connected, or its Envoy is not; "" if they are. That no agent has ever joined is a
// reason of the endpoint.
func connectionReason(p *adminv1.Proxy) string {
	state := p.GetAgentState()
	down := p.GetAgent().GetEnvoyDown()
	switch phase := state.GetPhase(); {
	case phase == adminv1.AgentState_CONNECTED && down != "":
		return "its Envoy does not run: " + down
	case phase == adminv1.AgentState_LOST:
		return fmt.Sprintf("not connected: the agent is lost for %s, and the endpoint stays", timeSince(state.GetSince()))
	case phase == adminv1.AgentState_STOPPED:
		return fmt.Sprintf("not connected: the agent has drained, and ended %s ago", timeSince(state.GetSince()))
	case phase == adminv1.AgentState_RECONNECTING:
		return "not connected: the session has just ended, or the control plane has just started, and the agent has not come back yet"
	case phase == adminv1.AgentState_CONNECTED && len(p.GetStreams()) == 0:
		return "its Envoy has no connection to this replica of the control plane"
	}
	return ""
}
