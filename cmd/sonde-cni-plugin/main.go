// Command sonde-cni-plugin is the CNI plugin that the daemon sonde-cni installs on its node, under the name sonde-cni.
// Container runtimes run it.
package main

import (
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/sonde-mesh/sonde/cni/plugin"
	"github.com/sonde-mesh/sonde/cni/wire"
)

func main() {
	skel.PluginMainFuncs(plugin.Funcs(wire.Ask, os.Stderr), version.All, "sonde-cni: redirects the connections of pods to their sidecars, through the daemon of their node")
}
