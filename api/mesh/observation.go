package mesh

// Observation is what is known about a proxy beyond its Dataplane: from what was issued to it, and from its agent.
type Observation struct {
	// Joined says that a certificate has been issued to the proxy.
	Joined bool
	// Draining proxies get new traffic only if no other endpoint is ready. It is set until a Hello of the agent that does
	// not say so.
	Draining bool
	// Workload that the certificate in use names, "" if that is not known.
	Workload string
}
