// Package viewers measures what viewers of a mesh, such as sondectl dashboard, cost the control plane: the program
// sonde-cp with 1,000 proxies, whose agents and Envoys are connected, and whose agents report three probes each.
//
//	go test ./bench/viewers -run '^$' -bench . -benchtime 1x
package viewers
