package restarts

import (
	"context"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/admin/caller"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// ReleaseRestarts implements adminv1.AdminServiceServer.
func (a *Answers) ReleaseRestarts(
	ctx context.Context, r *adminv1.ReleaseRestartsRequest,
) (*adminv1.ReleaseRestartsResponse, error) {
	asked, err := parseWorkload(r.GetNamespace(), r.GetWorkload())
	if err != nil {
		return nil, err
	}
	s, err := a.snapshot()
	if err != nil {
		return nil, err
	}
	var known []string
	for id := range s.in.Workloads {
		if strings.EqualFold(id.Kind, asked.Kind) && id.Namespace == asked.Namespace && id.Name == asked.Name {
			n, err := a.Release(ctx, id)
			if err != nil {
				return nil, status.Errorf(codes.Unavailable, "release %s: %v", id, err)
			}
			caller.Log(ctx, a.o.Logger).InfoContext(ctx, "restarts released", "workload", id.String(), "released", n)
			return &adminv1.ReleaseRestartsResponse{Workload: id.String(), Released: uint32(n)}, nil
		}
		known = append(known, id.String())
	}
	slices.Sort(known)
	return nil, status.Errorf(codes.NotFound, "workload %.200q has no guarded pod%s%s",
		asked.String(), mesh.DidYouMean(asked.String(), known), s.waiting())
}

// shortKinds are kubectl's abbreviations.
var shortKinds = map[string]string{"deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet", "po": "Pod"}

// parseWorkload returns the workload that text names. The kind is case-insensitive.
func parseWorkload(namespace, text string) (restartbudget.WorkloadID, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 2 && namespace != "" {
		parts = []string{parts[0], namespace, parts[1]}
	}
	id, is := restartbudget.ParseWorkloadID(strings.Join(parts, "/"))
	switch {
	case !is:
		return id, status.Errorf(codes.InvalidArgument,
			"workload %.200q: must be Kind/namespace/name, such as Deployment/shop/web, or kind/name with a namespace", text)
	case namespace != "" && id.Namespace != namespace:
		return id, status.Errorf(codes.InvalidArgument, "workload %.200q: is not in namespace %.100q", text, namespace)
	}
	if long := shortKinds[strings.ToLower(id.Kind)]; long != "" {
		id.Kind = long
	}
	return id, nil
}

// maxWaiting is the maximum number of workloads in an error.
const maxWaiting = 5

// waiting returns the end of an error message: which workloads wait for a release.
func (s *snapshot) waiting() string {
	all := map[string]bool{}
	for _, p := range s.pods {
		if s.waits(p) {
			all[p.workload.String()] = true
		}
	}
	names := slices.Sorted(maps.Keys(all))
	switch {
	case len(names) == 0:
		return "; no workload waits for a release"
	case len(names) > maxWaiting:
		names = append(names[:maxWaiting], "…")
	}
	return "; workloads that wait for a release: " + strings.Join(names, ", ")
}
