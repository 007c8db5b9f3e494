// Package agent tests what needs processes of an agent: a real Envoy beside it, the guard around it, its signals and its memory. What the agent
// decides is tested in dpagent, in virtual time.
package agent
