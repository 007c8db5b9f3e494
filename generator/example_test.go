package generator_test

import (
	"fmt"
	"log"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// Objects become a view, and a change of the view becomes changed resources of the affected proxies.
func ExampleTranslator() {
	builder := meshview.NewBuilder(meshview.Options{})
	translator := generator.NewTranslator(generator.TranslatorOptions{})

	dataplane := func(name, address string, outbounds ...mesh.Outbound) *mesh.Dataplane {
		d := &mesh.Dataplane{Meta: mesh.Meta{Name: name}, Spec: mesh.DataplaneSpec{Networking: mesh.Networking{
			Address:  address,
			Inbound:  []mesh.Inbound{{Port: 8080, Tags: mesh.Tags{mesh.TagService: name}}},
			Outbound: outbounds,
		}}}
		d.SetDefaults()
		return d
	}
	var before resource.Desired
	apply := func() {
		change, _ := builder.Build()
		changed, err := translator.Apply(change)
		if err != nil {
			log.Fatal(err)
		}
		now := changed["default/web"]
		for _, c := range slices.Concat(resource.Diff(before.Own, now.Own), resource.Diff(before.Shared, now.Shared)) {
			fmt.Println(c.Key().Type.Short(), c.Key().Name)
		}
		before = now
	}

	translator.Attach("default/web", resource.Metadata{}) // its Envoy connects before any resource exists
	fmt.Println("both start:")
	builder.Set("files", dataplane("api", "10.0.0.1"))
	builder.Set("files", dataplane("web", "10.0.0.2", mesh.Outbound{Port: 10001, Tags: mesh.Tags{mesh.TagService: "api"}}))
	apply()

	fmt.Println("api stops:")
	builder.Delete("files", mesh.Key{Kind: mesh.KindDataplane, Mesh: "default", Name: "api"})
	apply()
	// Output:
	// both start:
	// cluster inbound:8080
	// listener inbound:10.0.0.2:8080
	// listener outbound:127.0.0.1:10001
	// listener readiness
	// cluster api
	// endpoint api
	// api stops:
	// endpoint api
}
