package main

const toStderr = "redirect stderr: the log goes there, and a service manager or the kubelet stores it"

// ofKuma maps the commands and flags of kuma-cp that sonde-cp lacks to their replacements. Source: Kuma's
// app/kuma-cp/cmd.
var ofKuma = map[string]string{
	"run":                      "leave it out: sonde-cp without a command runs the control plane",
	"migrate":                  "leave it out: Sonde has no database; objects are in the files of --store=dir:PATH, or in Kubernetes",
	"--config-file":            "write --config",
	"-c":                       "write --config",
	"--log-output-path":        toStderr,
	"--log-max-retained-files": toStderr,
	"--log-max-size":           toStderr,
	"--log-max-age":            toStderr,
}
