// Package redirect tries sonde-dp's redirection with the real Envoy, in network namespaces of its own.
package redirect
