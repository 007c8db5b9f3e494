package webhook

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// written returns a handler in one line, to be shown.
func (h handler) written() string {
	switch a := h.actions(); {
	case a.exec != nil:
		return "exec " + writtenCommand(a.exec.Command)
	case a.http != nil:
		return writtenHTTP(string(a.http.Scheme), a.http.Host, a.http.Port.String(), a.http.Path)
	case a.tcp != nil:
		return "tcpSocket " + a.tcp.Host + ":" + a.tcp.Port.String()
	case a.grpc != nil && a.grpc.Service != nil:
		return writtenGRPC(a.grpc.Port, *a.grpc.Service)
	case a.grpc != nil:
		return writtenGRPC(a.grpc.Port, "")
	case a.sleep != nil:
		return fmt.Sprintf("sleep %ds", a.sleep.Seconds)
	}
	return "unknown"
}

// writtenProbe returns an entry of the probe table in the same form.
func writtenProbe(p mesh.Probe) string {
	switch {
	case p.HTTPGet != nil:
		port := intstr.FromInt32(p.HTTPGet.Port)
		return writtenHTTP(p.HTTPGet.Scheme, "", port.String(), p.HTTPGet.Path)
	case p.TCPSocket != nil:
		return "tcpSocket :" + number(p.TCPSocket.Port)
	default:
		return writtenGRPC(p.GRPC.Port, p.GRPC.Service)
	}
}

// writtenCommand returns a command, shortened, since it may be a script.
func writtenCommand(words []string) string {
	const longest = 60
	command := []rune(strings.Join(strings.Fields(strings.Join(words, " ")), " "))
	if len(command) <= longest {
		return string(command)
	}
	return string(command[:longest-1]) + "…"
}

func writtenHTTP(scheme, host, port, path string) string {
	words := []string{"httpGet"}
	if scheme != "" && scheme != mesh.SchemeHTTP {
		words = append(words, scheme)
	}
	words = append(words, host+":"+port)
	if path != "" {
		words = append(words, path)
	}
	return strings.Join(words, " ")
}

func writtenGRPC(port int32, service string) string {
	if service == "" {
		return "grpc :" + number(port)
	}
	return "grpc :" + number(port) + " " + service
}
