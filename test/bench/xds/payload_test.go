package xds

import (
	"errors"
	"fmt"

	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// payload has the resources that Sonde's generator makes for a proxy of a topology. The floors serve them to all
// proxies, so that all subjects send the same number of bytes.
type payload struct {
	all map[resource.Type][]*resource.Resource
	// endpoints of each service in both forms, by number of the service.
	endpoints [][2]*resource.Resource
}

// generate returns the payload of the last proxy that has inbounds.
func generate(w topology) (*payload, error) {
	builder := meshview.NewBuilder(meshview.Options{})
	translator := generator.NewTranslator(generator.TranslatorOptions{})
	apply := func() error {
		c, ok := builder.Build()
		if !ok {
			return errors.New("generate resources: nothing differs")
		}
		_, err := translator.Apply(c)
		return err
	}
	for _, o := range w.objects() {
		if err := o.Validate(); err != nil {
			return nil, err
		}
		builder.Set("", o)
	}
	if err := apply(); err != nil {
		return nil, err
	}
	proxy := proxyID(w.owners() - 1)
	desired := translator.Attach(proxy, resource.Metadata{})
	first, _ := w.viewers(w.narrow())
	translator.Attach(proxyID(first), resource.Metadata{})
	p := &payload{all: map[resource.Type][]*resource.Resource{}, endpoints: make([][2]*resource.Resource, w.services+1)}
	for _, t := range resource.Types() {
		p.all[t] = desired.Of(t)
	}
	now := w.forms()
	for form := range 2 {
		for s := range w.services + 1 {
			viewer := proxy
			if s == w.narrow() {
				viewer = proxyID(first)
			}
			desired, _ := translator.Resources(viewer)
			r := desired.Get(resource.Name{Type: resource.Endpoint, Name: w.serviceName(s)})
			if r == nil {
				return nil, fmt.Errorf("generate resources: %s has no endpoints", w.serviceName(s))
			}
			p.endpoints[s][form] = r
			builder.Set("", w.turn(s, now))
		}
		if err := apply(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// in returns the endpoints of a service in its current form.
func (p *payload) in(service int, now forms) *resource.Resource {
	if now[service] {
		return p.endpoints[service][1]
	}
	return p.endpoints[service][0]
}
