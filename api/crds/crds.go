// Package crds has the CustomResourceDefinitions of group sonde.dev, which `make generate` generates from api/v1alpha1.
package crds

import "embed"

// Files are the CustomResourceDefinitions, one YAML file each.
//
//go:embed *.yaml
var Files embed.FS
