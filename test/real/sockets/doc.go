// Package sockets tests how the agent uses the kernel's sockets: their options, their end, and a process that is stopped while it connects.
// The packages dpagent/probe and dpagent/scrape test everything else in virtual time.
package sockets
