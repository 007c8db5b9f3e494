package controlplane

import (
	"cmp"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/peers"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// decisions returns what this replica has decided last about restarts, nothing if it does not lead.
func (c *cluster) decisions(of peers.DecisionFilter) peers.Decisions {
	return decisionsOf(c.replica(), c.controller.Restarts.Round(), of)
}

func decisionsOf(replica string, round *restarts.Round, of peers.DecisionFilter) peers.Decisions {
	if round == nil {
		return peers.Decisions{}
	}
	b := round.Breaker
	d := peers.Decisions{Round: &adminv1.RestartRound{
		Replica: replica, Epoch: round.Epoch, At: timestamppb.New(round.At), Mode: string(cmp.Or(round.Settings.Mode, restartbudget.Enforce)),
		BreakerOpen: b.Open, Failed: uint32(b.Held), Workloads: uint32(b.Workloads), Guarded: uint32(b.Guarded),
	}}
	for i := range round.Decisions {
		decision := &round.Decisions[i]
		request := &decision.Request
		if of.Namespace != "" && of.Namespace != request.Workload.Namespace || of.PodUID != "" && of.PodUID != request.PodUID {
			continue
		}
		d.All = append(d.All, &adminv1.RestartDecision{
			PodUid: request.PodUID, Container: request.Name, Verdict: string(decision.Verdict), Reason: string(decision.Reason), DryRun: decision.DryRun,
			Count: uint32(decision.Count), Limit: uint32(decision.Limit), Source: decision.Source, Text: decision.String(), Needs: decision.Needs(),
		})
	}
	return d
}
