package watch

import (
	"iter"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// view is the state of the sections at one viewer.
type view struct {
	sections []section
	denied   map[section]*status.Status // sections without the right, and unknown ones
	has      map[section]*snapshot
}

// maxSections bounds the sections of a call, including unknown ones.
const maxSections = 32

// newView returns the view of a viewer that has nothing.
func newView(sections []section, denied map[section]*status.Status) (*view, error) {
	if len(sections) == 0 || len(sections) > maxSections {
		return nil, status.Errorf(codes.InvalidArgument, "sections: there are %d, must be 1 to %d", len(sections),
			maxSections)
	}
	for i, s := range sections {
		if s == adminv1.WatchRequest_SECTION_UNSPECIFIED || slices.Contains(sections[:i], s) {
			return nil, status.Errorf(codes.InvalidArgument, "sections: %s: must be specified, and given once", s)
		}
	}
	return &view{sections: sections, denied: denied, has: map[section]*snapshot{}}, nil
}

// refusal returns why the viewer gets nothing. A missing right comes before a section that does not exist.
func (v *view) refusal() error {
	for _, s := range v.sections {
		if v.denied[s].Code() == codes.PermissionDenied {
			return v.denied[s].Err()
		}
	}
	return v.denied[v.sections[0]].Err()
}

// allowed returns the sections to which the viewer has the right.
func (v *view) allowed() []section {
	return slices.DeleteFunc(slices.Clone(v.sections), func(s section) bool { return v.denied[s] != nil })
}

// update yields the messages that bring the viewer up to date with a reading, without its end.
func (v *view) update(now map[section]*snapshot) iter.Seq[*adminv1.WatchResponse] {
	return func(yield func(*adminv1.WatchResponse) bool) {
		for _, s := range v.sections {
			is, was := now[s], v.has[s]
			if why := v.denied[s]; why != nil {
				is = denied(why)
			}
			if is == nil {
				continue
			}
			v.has[s] = is
			for m := range messages(s, was, is) {
				if !yield(m) {
					delete(v.has, s) // the viewer may have a part of it
					return
				}
			}
		}
	}
}

// messages yields what a viewer that has was must get to have is.
func messages(of section, was, is *snapshot) iter.Seq[*adminv1.WatchResponse] {
	return func(yield func(*adminv1.WatchResponse) bool) {
		if is.failed != nil {
			if was == nil || was.failed == nil || was.failed.String() != is.failed.String() {
				yield(&adminv1.WatchResponse{Section: of, Error: &adminv1.WatchError{
					Code: uint32(is.failed.Code()), Message: is.failed.Message(),
				}})
			}
			return
		}
		if was != nil && was.failed != nil {
			was = nil
		}
		d := is.since(was)
		first := was == nil
		for first || len(d.changed) > 0 || len(d.removed) > 0 || d.rest != nil {
			if !yield(d.part(of, first)) {
				return
			}
			first = false
		}
	}
}
