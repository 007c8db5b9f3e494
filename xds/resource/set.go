package resource

// Set is an immutable set of resources, unique by type and name.
type Set struct{}
