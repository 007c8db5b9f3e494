package main

const toStderr = "the log goes to stderr, from where a service manager or the kubelet keeps it"

// ofKuma has the commands and flags of kuma-cp that sonde-cp does not have, with what to write instead.
// Source: Kuma's app/kuma-cp/cmd.
var ofKuma = map[string]string{
	"run":                      "leave it out: sonde-cp without a command runs the control plane",
	"migrate":                  "there is no database: objects are in the files of --store=dir:PATH, or in Kubernetes",
	"--config-file":            "write --config",
	"-c":                       "write --config",
	"--log-output-path":        toStderr,
	"--log-max-retained-files": toStderr,
	"--log-max-size":           toStderr,
	"--log-max-age":            toStderr,
}
