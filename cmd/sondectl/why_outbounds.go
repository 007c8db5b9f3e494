package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
)

// maxCalled limits the services requested by name. For more, the command requests all services of the mesh.
const maxCalled = 20

// askForCalled adds the services of the dataplanes' outbounds.
func (s *subject) askForCalled(ctx context.Context, api adminv1.AdminServiceClient) error {
	for _, d := range s.dataplanes.GetDataplanes() {
		var head mesh.Meta
		if err := decode(d.GetObject(), &head); err != nil {
			return err
		}
		var called []string
		for _, o := range d.GetOutbounds() {
			if o.GetService() != "" && !slices.Contains(called, o.GetService()) {
				called = append(called, o.GetService())
			}
		}
		if len(called) > maxCalled {
			called = []string{""}
		}
		for _, name := range called {
			listed, err := api.ListServices(ctx, &adminv1.ListServicesRequest{
				Filter: &adminv1.Filter{Mesh: head.Mesh, Name: name},
			})
			if err != nil {
				return err
			}
			for _, svc := range listed.GetServices() {
				s.called[mesh.MakeID(svc.GetMesh(), svc.GetName())] = svc
			}
		}
	}
	return nil
}

// ofOutbounds returns a finding for each outbound of a Dataplane.
func (s *subject) ofOutbounds(d *mesh.Dataplane, entry *adminv1.Dataplane) []finding {
	var all []finding
	for _, o := range entry.GetOutbounds() {
		f := finding{
			Kind: names.Dataplane, Mesh: d.Mesh, Endpoint: o.GetAddress(), Dataplane: d.Name, State: "outbound-ready",
		}
		if o.GetService() != "" {
			f.Services = []string{o.GetService()}
		}
		svc := s.called[mesh.MakeID(d.Mesh, o.GetService())]
		switch {
		case o.GetHealth() == adminv1.Endpoint_NOT_READY:
			f.State, f.Reasons = "outbound-not-ready", []string{o.GetReason()}
		case o.GetService() == "":
			f.Reasons = []string{"all calls are redirected to it, for any service of the mesh"}
		case svc != nil && len(svc.GetEndpoints()) == 0:
			f.State, f.Reasons = "outbound-no-endpoints", svc.GetReasons()[:min(len(svc.GetReasons()), 1)]
		case svc != nil && !slices.ContainsFunc(svc.GetEndpoints(), describe.Serves):
			of := svc.GetName()
			f.State = "outbound-no-endpoints"
			f.Reasons = []string{"no endpoint of service " + of + " gets traffic: sondectl why service/" + of + " says why"}
		}
		all = append(all, f)
	}
	return all
}

// decode decodes an object of the API.
func decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode object: %w", mesh.ExplainJSON("", body, into))
	}
	return nil
}
