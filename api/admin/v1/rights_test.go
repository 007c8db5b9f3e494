package adminv1

import (
	"slices"
	"testing"
)

func TestEachMethodHasARight(t *testing.T) {
	methods := Methods()
	for _, method := range methods {
		if method == AdminService_Watch_FullMethodName {
			continue // TestEachSectionHasARight
		}
		right, ok := RightOf(method)
		if !ok {
			t.Errorf("%s has no right: without one it is for the admin token alone", method)
		}
		if right.Verb != VerbGet && right.Verb != VerbCreate {
			t.Errorf("%s: verb %q: must be %s or %s", method, right.Verb, VerbGet, VerbCreate)
		}
	}
	for method := range rights {
		if !slices.Contains(methods, method) {
			t.Errorf("%s has a right, and is no method", method)
		}
	}
}

func TestEachSectionHasARight(t *testing.T) {
	for n := range WatchRequest_Section_name {
		section := WatchRequest_Section(n)
		right, ok := RightOfSection(section)
		if known := section != WatchRequest_SECTION_UNSPECIFIED; ok != known || right.Changes() && ok {
			t.Errorf("section %s: right %v, %t", section, right, ok)
		}
	}
}

func TestRightOf(t *testing.T) {
	for method, want := range map[string]Right{
		AdminService_RotateCA_FullMethodName:     {VerbCreate, "rotations"},
		AdminService_InspectEnvoy_FullMethodName: {VerbGet, "proxies/envoy"},
		"/other.Service/RotateCA":                {},
		"RotateCA":                               {},
		"/sonde.admin.v1.AdminService/Unknown":   {},
		"":                                       {},
	} {
		if got, ok := RightOf(method); got != want || ok != (want != Right{}) {
			t.Errorf("RightOf(%q) = %v, %t, want %v", method, got, ok, want)
		}
	}
}
