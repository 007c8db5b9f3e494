// Package probe measures the cost of a probe through the agent. It compares the agent with direct probes of the
// application, and with a naive proxy. The application and each subject run in their own processes.
//
//	go test ./bench/probe -run '^$' -bench Probe/kind=HTTP
//	go test ./bench/probe -run '^$' -bench Memory/entries=600/ -benchtime 1667x # a million probes
package probe
