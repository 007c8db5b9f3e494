package store

import (
	"regexp"
	"strings"
)

// isProbeHandler matches the paths of the handlers of a serviceProbe: "grpc:" alone says how to ask, too.
var isProbeHandler = regexp.MustCompile(`\.serviceProbe\.(tcp|httpGet|tcpSocket|grpc)$`)

// refusedProbeFields are the fields of a Kubernetes probe that a serviceProbe does not have, with the reason.
var refusedProbeFields = map[string]string{
	"exec":                          "must not be there: the agent runs no programs for a document of the mesh; use httpGet, tcpSocket, grpc or tcp",
	"initialDelaySeconds":           "must not be there: an inbound is not ready before its first success, and nothing restarts an application that is slow to start",
	"terminationGracePeriodSeconds": "must not be there: the agent ends no application",
	"httpGet.host":                  "must not be there: the probe goes to the inbound's serviceAddress; write a header Host instead",
	"tcpSocket.host":                "must not be there: the probe goes to the inbound's serviceAddress",
	"http":                          "must be httpGet, as in a Kubernetes probe",
	"tcp.port":                      "must not be there: the probe goes to the inbound's servicePort; tcpSocket has a port of its own",
}

// refusedProbeField returns why a field of that path is refused, for those that somebody may well write.
func refusedProbeField(path string) (why string, ok bool) {
	field, ok := strings.CutPrefix(path, "networking.inbound[].serviceProbe.")
	if !ok {
		return "", false
	}
	why, ok = refusedProbeFields[field]
	return why, ok
}
