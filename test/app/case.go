package main

import (
	"context"
	"fmt"
	"os"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
)

// virtualPort is the port where the agent answers probes.
const virtualPort = 9000

// serveCase serves the application of a case of the fidelity test at the pod's address, from a port on, until ctx
// ends.
func serveCase(ctx context.Context, name string, port int) error {
	c, err := cases.Find(name)
	if err != nil {
		return err
	}
	a, err := c.Start(cases.PodAt(os.Getenv("POD_IP"), port, virtualPort))
	if err != nil {
		return fmt.Errorf("serve the case %q: %w", name, err)
	}
	<-ctx.Done()
	a.End()
	return nil
}
