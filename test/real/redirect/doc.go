// Package redirect tests sonde-dp's redirection with a real Envoy, in its own network namespaces.
package redirect
