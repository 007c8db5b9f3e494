package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

// read probes the cluster. It reads the leases only if the API server responds; any error fails the whole probe.
func (c *Cluster) read(ctx context.Context, conf *config.Cluster) (partition.Reading, map[LeaseState]int, error) {
	ctx, cancel := context.WithTimeout(ctx, conf.Probe.Timeout)
	defer cancel()
	source, err := c.o.Open(ctx)
	if err != nil {
		return partition.Reading{}, nil, err
	}
	defer source.Close()
	if err := source.APIServer(ctx); err != nil {
		return partition.Reading{}, nil, err
	}
	zones, err := source.Nodes(ctx)
	if err != nil {
		return partition.Reading{}, nil, err
	}
	at, all, err := source.Leases(ctx)
	if err != nil {
		return partition.Reading{}, nil, err
	}
	c.tracker.Read(at, all)
	r := partition.Reading{At: at}
	for _, l := range all {
		if zone, ok := zones[l.Node]; ok {
			r.Members = append(r.Members, partition.Member{Name: l.Node, Zone: zone, Heard: c.tracker.Heard(l.Node)})
		}
	}
	counts := count(r, conf.Judge.Silence)
	if suspects := counts[Expired] + counts[Unjudged]; counts[Expired] > 0 &&
		float64(suspects) >= conf.Judge.Leave*float64(len(r.Members)) {
		// Only whole nodes have taints, and they are large: read them only if pending deletions may matter.
		going, err := source.Going(ctx)
		if err != nil {
			return partition.Reading{}, nil, err
		}
		for _, node := range going {
			delete(zones, node)
		}
		r.Members = slices.DeleteFunc(r.Members, func(m partition.Member) bool {
			_, ok := zones[m.Name]
			return !ok
		})
		counts = count(r, conf.Judge.Silence)
	}
	counts[LeftOut] = len(all) - len(r.Members)
	return r, counts, nil
}

// count counts the leases of a reading by state.
func count(r partition.Reading, silence time.Duration) map[LeaseState]int {
	counts := map[LeaseState]int{Renewed: 0, Expired: 0, Unjudged: 0}
	for i := range r.Members {
		switch heard := r.Members[i].Heard; {
		case heard.IsZero():
			counts[Unjudged]++
		case r.At.Sub(heard) >= silence:
			counts[Expired]++
		default:
			counts[Renewed]++
		}
	}
	return counts
}
