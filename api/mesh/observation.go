package mesh

// Observation is what the control plane has learnt about a proxy from its agent, beside its Dataplane.
type Observation struct {
	// Draining proxies get no new traffic unless nobody else is ready. It holds until the proxy's next Hello
	// that does not say it.
	Draining bool
}
