package main

import (
	"strings"
	"unicode"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/store"
)

const (
	byChart  = "install the chart with helm (docs/guides/install.md)"
	allGet   = "write sondectl get meshes, dataplanes, services or meshservices with -o yaml"
	ownKeys  = "leave it out: the control plane creates its keys; sondectl rotate replaces the CAs"
	connect  = "set --address, --ca-cert-file and --token-file, or SONDECTL_ADDRESS, SONDECTL_CA_CERT_FILE and SONDECTL_TOKEN_FILE"
	noZones  = "leave it out: Sonde has no zones; one control plane has all Dataplanes"
	onlyName = "write --name, and --workload for the identity"
)

// ofKuma maps the commands and flags of kumactl and of sondectl 0.1 that sondectl lacks to their replacements. Source:
// Kuma's app/kumactl/cmd.
func ofKuma() map[string]string {
	replaced := map[string]string{ //nolint:gosec // names of commands are not secret
		"apply":                                 "write the file into the directory of the control plane's --store, after sondectl validate, or on Kubernetes use kubectl apply",
		"delete":                                "remove the file from the directory of the control plane's --store, or on Kubernetes use kubectl delete",
		"export":                                allGet,
		"install":                               byChart,
		"install transparent-proxy":             "write sonde-dp install transparent-proxy",
		"install crds":                          "write sonde-cp apply-crds, which the chart also runs",
		"install demo":                          "run make demo in the sources of Sonde",
		"uninstall":                             "remove the chart with helm (docs/guides/uninstall.md)",
		"uninstall transparent-proxy":           "write sonde-dp uninstall transparent-proxy",
		"config":                                connect,
		"inspect meshes":                        "write sondectl get meshes",
		"inspect services":                      "write sondectl get services",
		"inspect zones":                         noZones,
		"generate user-token":                   "use the file admin-token in the state directory; on Kubernetes sondectl uses your kubeconfig",
		"generate zone-token":                   noZones,
		"generate zone-ingress-token":           noZones,
		"generate signing-key":                  ownKeys,
		"generate public-key":                   ownKeys,
		"generate tls-certificate":              ownKeys,
		"generate dataplane-token --tag":        onlyName,
		"generate dataplane-token --dataplane":  onlyName,
		"generate dataplane-token --proxy-type": "leave it out: every proxy is a Dataplane",
		"generate dataplane-token --signing-key-path": ownKeys,
		"generate dataplane-token --kid":              ownKeys,
		"-m":                                          "write --mesh",
		"--config-file":                               connect,
		"--no-config":                                 "leave it out: sondectl has no file with control planes",
		"--config":                                    connect,
		"--context":                                   "write --kube-context for a context of the kubeconfig; else " + connect,
	}
	for kind, means := range store.KumaKinds() {
		words := kebab(kind)
		for _, word := range []string{
			words, printer.PluralOf(words), strings.ToLower(kind), printer.PluralOf(strings.ToLower(kind)),
		} {
			for _, command := range []string{"get ", "inspect "} {
				if replaced[command+word] == "" {
					replaced[command+word] = "Kuma has this kind, Sonde does not: " + means
				}
			}
		}
	}
	return replaced
}

// kebab returns a kind in the form of kumactl's commands, such as traffic-permission.
func kebab(kind string) string {
	var word strings.Builder
	for i, letter := range kind {
		if unicode.IsUpper(letter) && i > 0 {
			word.WriteByte('-')
		}
		word.WriteRune(unicode.ToLower(letter))
	}
	return word.String()
}
