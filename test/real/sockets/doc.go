// Package sockets tests the agent's kernel sockets: their options, their end, and a process that is stopped while it
// connects. The packages dpagent/probe and dpagent/scrape test everything else in virtual time.
package sockets
