//go:build race

package cluster

// schedules is how many are played: the race detector makes each take ten times as long.
const schedules = 1_000
