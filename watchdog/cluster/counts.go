package cluster

import (
	"cmp"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/partition"
)

// counted copies the counts of a state into a status, and returns whether to write it. changed forces the write.
func (l *ledger) counted(s *v1alpha1.WatchedClusterStatus, state partition.State, changed bool) bool {
	counts := countsOf(state)
	if slices.Equal(counts, s.Counts) || !changed && time.Since(l.countedAt) < tellEvery {
		return changed
	}
	s.Counts, l.countedAt = counts, time.Now()
	return true
}

// countsOf returns the counts of the whole cluster, then of its zones by name.
func countsOf(state partition.State) []v1alpha1.NodeCount {
	var counts []v1alpha1.NodeCount
	for group, status := range state {
		if status.Members == 0 && group != partition.Whole {
			continue
		}
		counts = append(counts, v1alpha1.NodeCount{Zone: group.Zone, Nodes: count32(status.Members),
			Silent: count32(status.Silent), Unheard: count32(status.Unheard)})
	}
	slices.SortFunc(counts, func(a, b v1alpha1.NodeCount) int { return cmp.Compare(a.Zone, b.Zone) })
	return counts[:min(len(counts), 1+maxZones)]
}

func count32(n int) int32 { return int32(n) }
