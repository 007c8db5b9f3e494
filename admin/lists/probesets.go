package lists

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Bounds of the probe sets in a response: tenants write their texts.
const (
	maxProbeSets     = 2000
	maxProbeSetBytes = 1 << 20
)

// probeSets returns the probe sets of pods, each once. Their order and choice do not depend on the order of the pods:
// Watch sends all of them again whenever they differ.
func (a *Answers) probeSets(dataplanes []*adminv1.Dataplane) (sets []*adminv1.ProbeSet) {
	if a.ProbesOf == nil {
		return nil
	}
	pods := map[uint64]string{}
	for _, d := range dataplanes {
		if id := d.GetPodState().GetProbeSet(); id != 0 {
			pods[id] = d.GetName()
		}
	}
	bytes := 0
	for _, id := range slices.Sorted(maps.Keys(pods)) {
		set := a.ProbesOf(pods[id])
		if set.GetId() != id { // another pod has the name by now
			continue
		}
		if bytes += proto.Size(set); bytes > maxProbeSetBytes || len(sets) == maxProbeSets {
			break
		}
		sets = append(sets, set)
	}
	return sets
}
