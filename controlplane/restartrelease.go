package controlplane

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// Release implements admin.Restarts.
func (r *restartReport) Release(ctx context.Context, namespace, workload string) (*adminv1.ReleaseRestartsResponse, error) {
	asked, err := parseWorkload(namespace, workload)
	if err != nil {
		return nil, err
	}
	report, err := r.report()
	if err != nil {
		return nil, err
	}
	var known []string
	for id := range maps.Keys(report.Workloads) {
		if strings.EqualFold(id.Kind, asked.Kind) && id.Namespace == asked.Namespace && id.Name == asked.Name {
			n, err := r.known.Release(ctx, id)
			if err != nil {
				return nil, status.Errorf(codes.Unavailable, "release %s: %v", id, err)
			}
			return &adminv1.ReleaseRestartsResponse{Workload: id.String(), Released: uint32(n)}, nil
		}
		known = append(known, id.String())
	}
	slices.Sort(known)
	return nil, status.Errorf(codes.NotFound, "workload %.200q has no guarded pod%s%s", asked.String(), mesh.DidYouMean(asked.String(), known), waiting(report))
}

// shortKinds are kubectl's.
var shortKinds = map[string]string{"deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet", "po": "Pod"}

// parseWorkload returns the workload that is asked for. Its kind may be in other letter case.
func parseWorkload(namespace, text string) (restartbudget.WorkloadID, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 2 && namespace != "" {
		parts = []string{parts[0], namespace, parts[1]}
	}
	id, is := restartbudget.ParseWorkloadID(strings.Join(parts, "/"))
	switch {
	case !is:
		return id, status.Errorf(codes.InvalidArgument, "workload %.200q: must be Kind/namespace/name, such as Deployment/shop/web, or kind/name with a namespace", text)
	case namespace != "" && id.Namespace != namespace:
		return id, status.Errorf(codes.InvalidArgument, "workload %.200q: is not in namespace %.100q", text, namespace)
	}
	if long := shortKinds[strings.ToLower(id.Kind)]; long != "" {
		id.Kind = long
	}
	return id, nil
}

// maxNamed is how many workloads an error names.
const maxNamed = 5

// waiting returns the end of a message: which workloads could be released.
func waiting(report *restarts.Report) string {
	all := map[string]bool{}
	for i := range report.Pods {
		if report.Pods[i].Unhelpful {
			all[report.Pods[i].Workload.String()] = true
		}
	}
	names := slices.Sorted(maps.Keys(all))
	switch {
	case len(names) == 0:
		return "; no workload waits for a release"
	case len(names) > maxNamed:
		names = append(names[:maxNamed], "…")
	}
	return "; those that wait for a release: " + strings.Join(names, ", ")
}

func grantMessage(g *restarts.Grant) *adminv1.RestartGrant {
	at := func(t time.Time) *timestamppb.Timestamp {
		if t.IsZero() {
			return nil
		}
		return timestamppb.New(t)
	}
	return &adminv1.RestartGrant{
		Pod: g.Pod, Container: g.ID.Name, Restarts: uint32(g.ID.Restarts), DryRun: g.DryRun, Outcome: string(g.Outcome), InProgress: g.InProgress,
		Granted: at(g.Granted), Spent: at(g.Spent), Ended: at(g.Ended), Judged: at(g.Judged),
	}
}
