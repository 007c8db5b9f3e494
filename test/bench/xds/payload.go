package main

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"

	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// entry is one encoded resource.
type entry struct {
	Name, Version string
	Body          []byte
}

// payload is what Sonde's generator makes for a proxy of a topology. The floors serve it to all proxies, so that all subjects
// send the same number of bytes.
type payload struct {
	All map[resource.Type][]entry
	// Endpoints of each service in both forms, by number of the service.
	Endpoints [][2]entry
}

// generate makes the payload of the last proxy that has inbounds.
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
	desired := translator.Attach(proxyID(w.owners() - 1))
	p := &payload{All: map[resource.Type][]entry{}, Endpoints: make([][2]entry, w.Services+1)}
	for _, t := range resource.Types() {
		for _, r := range desired.Of(t) {
			p.All[t] = append(p.All[t], entryOf(r))
		}
	}
	now := w.forms()
	last := w.Services
	if w.Narrow {
		last++
	}
	for form := range 2 {
		for s := range last {
			viewer, _ := w.viewers(s)
			d, _ := translator.Resources(proxyID(viewer))
			r := d.Get(resource.Name{Type: resource.Endpoint, Name: w.serviceName(s)})
			if r == nil {
				return nil, fmt.Errorf("generate resources: %s has no endpoints", w.serviceName(s))
			}
			p.Endpoints[s][form] = entryOf(r)
		}
		for s := range last {
			builder.Set("", w.turn(s, now))
		}
		if err := apply(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// of returns the endpoints of a service in its current form.
func (p *payload) of(service int, now forms) entry {
	if now[service] {
		return p.Endpoints[service][1]
	}
	return p.Endpoints[service][0]
}

func entryOf(r *resource.Resource) entry {
	return entry{Name: r.Name, Version: r.Version, Body: r.Body.GetValue()}
}

func (p *payload) write(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(file).Encode(p), file.Close())
}

func readPayload(path string) (*payload, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	p := &payload{}
	return p, errors.Join(gob.NewDecoder(file).Decode(p), file.Close())
}
