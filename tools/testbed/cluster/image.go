package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sonde-mesh/sonde/deploy/image/archive"
)

// The images of the cluster itself, which are in no registry.
const (
	pauseImage = "docker.io/sonde-testbed/pause:1"
	dnsImage   = "docker.io/sonde-testbed/coredns:1"
)

// writeImages builds the images of the cluster itself, each with one static program, and returns their files.
func (c *Cluster) writeImages(binaries string) ([]string, error) {
	var files []string
	for tag, program := range map[string]string{pauseImage: "pause", dnsImage: "coredns"} {
		file := c.path("images", program+".tar")
		if err := WriteProgramImage(filepath.Join(binaries, program), tag, file); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// WriteProgramImage writes an image of one static program, which is its entry point, as a docker-archive.
func WriteProgramImage(program, tag, file string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	at := "/" + filepath.Base(program)
	layer, err := archive.Layer([]archive.File{{Path: at, Mode: 0o755, Content: content}})
	if err != nil {
		return err
	}
	image, err := archive.Image(v1.Config{Entrypoint: []string{at}}, layer)
	if err != nil {
		return err
	}
	return archive.Write(file, tag, image)
}

// LoadImages loads the images in these files, in the format of `docker save` and `make image`, on each node.
func (c *Cluster) LoadImages(ctx context.Context, files ...string) error {
	d, err := c.complete()
	if err != nil {
		return err
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("read the image: %w", err)
		}
		if err := eachNode(d.Nodes, func(node int) error {
			return c.ctr(ctx, d.Binaries, node, "images", "import", file)
		}); err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
		c.say("%s is on %d nodes", filepath.Base(file), d.Nodes)
	}
	return nil
}
