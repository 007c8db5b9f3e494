package store

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDirLogsWhatItApplies shows the log lines at the start, for each change, and for many changes at once.
func TestDirLogsWhatItApplies(t *testing.T) {
	f := newFixture(t)
	timestamp := regexp.MustCompile(`(?m)^time=\S+ `)
	logged := func(what string, want ...string) {
		t.Helper()
		f.settled()
		text := strings.ReplaceAll(timestamp.ReplaceAllString(f.log.String(), ""), f.path, "DIR")
		f.log.Reset()
		if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(text), "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	f.write("mesh.yaml", "type: Mesh\nname: default\n")
	f.write("ab.yaml", service("a")+"---\n"+service("b"))
	logged("start", `level=INFO msg="store read" directory=DIR files=2 objects=3`)

	f.write("ab.yaml", service("b")+"protocol: http\n---\n"+service("c"))
	logged("one each",
		`level=INFO msg="object applied" kind=Service mesh=default name=b change=changed`,
		`level=INFO msg="object applied" kind=Service mesh=default name=c change=added`,
		`level=INFO msg="object applied" kind=Service mesh=default name=a change=removed`)

	var many []string
	for i := range maxLogged {
		many = append(many, service(fmt.Sprintf("s%d", i)))
	}
	f.write("many.yaml", strings.Join(many, "---\n"))
	f.write("ab.yaml", service("b"))
	logged("many", fmt.Sprintf(`level=INFO msg="objects applied" added=%d changed=1 removed=1`, maxLogged))

	f.write("ab.yaml", "# nothing\n")
	f.write("mesh.yaml", "# nothing\n")
	f.write("many.yaml", "# nothing\n")
	logged("none is left",
		fmt.Sprintf(`level=INFO msg="objects applied" added=0 changed=0 removed=%d`, maxLogged+2),
		`level=WARN msg="object file has a problem" file=DIR err="no Mesh, Dataplane, Service or MeshService found: only files *.yaml, *.yml and *.json directly in the directory are read"`)
}

// TestADirectoryWithoutObjects shows that a directory without objects is a warning at the start, which ends with the
// first object.
func TestADirectoryWithoutObjects(t *testing.T) {
	f := newFixture(t)
	f.settled()
	f.expectProblems("nothing", "no Mesh, Dataplane, Service or MeshService found")
	if _, problems, err := Read(f.path, nil, ""); err != nil || len(problems) != 1 || problems[0].Severity != Warning || problems[0].Err.Error() != errNoObject.Error() {
		t.Errorf("Read() = %v, %v, want a warning", problems, err)
	}
	f.write("a.yaml", service("a"))
	f.settled()
	f.expectProblems("an object")
	f.write("a.yaml", broken)
	f.remove("a.yaml")
	f.settled()
	f.expectProblems("none again", "no Mesh, Dataplane, Service or MeshService found")
	f.write("b.yaml", broken)
	f.settled()
	f.expectProblems("something wrong", "b.yaml, document 1")
}
