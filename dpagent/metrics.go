package dpagent

import (
	"context"
	"errors"
	"net"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/scrape"
)

// validateMetrics returns a *mesh.FieldError for each invalid option of the metrics port.
func (o *Options) validateMetrics() error {
	err := mesh.CheckMetricPrefixes("MetricsInclude", o.MetricsInclude)
	if o.MetricsAddress == "" {
		return err
	}
	refuse := func(allowed string) error {
		return errors.Join(err, &mesh.FieldError{Field: "MetricsAddress", Value: o.MetricsAddress, Allowed: allowed})
	}
	if !isAddress(o.MetricsAddress, 0) {
		return refuse("must be host:port, with a port from 0 to 65535; an empty host means all addresses")
	}
	port, _ := portOf(o.MetricsAddress)
	if port == 0 {
		return err
	}
	if use := o.takenPort(port); use != "" {
		return refuse("must not use " + use)
	}
	if port == o.LBHealthPort {
		return refuse("must not use the port for load balancers")
	}
	return err
}

// portOf returns the port of host:port.
func portOf(address string) (int, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}

// serveMetrics opens the port for Prometheus and serves it in group until ctx ends.
func (a *Agent) serveMetrics(ctx context.Context, group *errgroup.Group, page *scrape.Page) error {
	if a.o.MetricsAddress == "" {
		return nil
	}
	l, err := scrape.Listen(ctx, a.o.MetricsAddress)
	if err != nil {
		at := mesh.FieldError{Field: "MetricsAddress", Value: a.o.MetricsAddress, Allowed: mesh.AllowedOwnOrNoHost}
		return mesh.ListenError(at, at, err)
	}
	include := a.o.MetricsInclude
	if len(include) == 0 {
		include = mesh.DefaultMetricPrefixes()
	}
	server := scrape.NewServer(page, include)
	a.logger.Info("serving metrics for Prometheus", "address", l.Addr().String())
	group.Go(func() error { return server.Serve(ctx, l, a.places[usesMetrics]) })
	return nil
}
