// Package agent tests the processes of an agent: its Envoy, its guard, its signals and its memory. Package dpagent
// tests the agent's decisions in virtual time.
package agent
