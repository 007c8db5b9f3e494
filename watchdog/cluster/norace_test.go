//go:build !race

package cluster

// schedules is how many are played.
const schedules = 10_000
