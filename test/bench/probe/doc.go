// Package probe measures what a probe through the agent costs. It compares the agent with the application asked directly and with the naive
// design. The application and each subject are processes of their own.
//
//	go test ./bench/probe -run '^$' -bench Probe/kind=HTTP
//	go test ./bench/probe -run '^$' -bench Memory/entries=600/ -benchtime 1667x # a million probes
package probe
