package objects

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Problem is an object with its problem.
type Problem struct {
	// Resource, such as meshes, Namespace and Name identify the object.
	Resource, Namespace, Name string
	UID                       types.UID
	Text                      string
	// Bounds says that the object exceeds a limit of its size, or of the number of objects.
	Bounds bool
	// Since is when this replica first saw the problem, zero for a lost Mesh.
	Since time.Time
}

// invalid is the problem of an object.
type invalid struct {
	uid    types.UID
	text   string
	since  time.Time
	bounds bool
}

// Problems returns the invalid objects, whose last valid content is in use, and the lost Meshes, sorted.
func (s *Objects) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Problem
	for ref, is := range s.invalid {
		all = append(all, Problem{Resource: ref.resource, Namespace: ref.Namespace, Name: ref.Name, UID: is.uid,
			Text: is.text, Bounds: is.bounds, Since: is.since})
	}
	if s.missing == 0 {
		for name, m := range s.o.Recorded() {
			if !s.names[name] {
				all = append(all, Problem{Resource: resourceMeshes, Name: name, Text: m.LostError().Error()})
			}
		}
	}
	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), strings.Compare(a.Namespace, b.Namespace),
			strings.Compare(a.Name, b.Name))
	})
	return all
}

// Shown returns the Problems in the form of the admin API.
func (s *Objects) Shown() []*adminv1.Problem {
	var shown []*adminv1.Problem
	for _, p := range s.Problems() {
		problem := &adminv1.Problem{File: path.Join(p.Resource, p.Namespace, p.Name), Text: p.Text, Object: "mesh/" + p.Name}
		if p.Namespace != "" {
			problem.Object = "dataplane/" + mesh.ObjectDataplane(p.Namespace, p.Name)
		}
		if !p.Since.IsZero() {
			problem.Since = timestamppb.New(p.Since)
		}
		shown = append(shown, problem)
	}
	return shown
}
