package mesh

// Observation is what a proxy's agent has reported about it.
type Observation struct {
	// Draining proxies get new traffic only if no other endpoint is ready. It is set until a Hello of the agent that does
	// not say so.
	Draining bool
}
