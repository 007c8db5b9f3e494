package sonde_test

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// rightRow is a row of the table of rights: the right, and which service accounts of the chart have it.
var rightRow = regexp.MustCompile("(?m)^\\| `(get|create) (\\S+)` \\| .* \\| (yes)? ?\\| yes \\|$")

// TestRightsInDocs compares the table of docs/kubernetes.md with the rights that calls of the admin API need.
func TestRightsInDocs(t *testing.T) {
	page, err := os.ReadFile("docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	type needs struct{ reads bool }
	is, want := map[adminv1.Right]needs{}, map[adminv1.Right]needs{}
	for _, row := range rightRow.FindAllStringSubmatch(string(page), -1) {
		is[adminv1.Right{Verb: row[1], Resource: row[2]}] = needs{row[3] == "yes"}
	}
	for _, method := range adminv1.Methods() {
		if right, ok := adminv1.RightOf(method); ok {
			want[right] = needs{!right.Changes()}
		}
	}
	if !maps.Equal(is, want) {
		t.Errorf("docs/kubernetes.md has the rights %v, the code %v", is, want)
	}
	if !strings.Contains(string(page), "audience `sonde-admin`") {
		t.Error("docs/kubernetes.md does not name the audience of tokens")
	}
}
