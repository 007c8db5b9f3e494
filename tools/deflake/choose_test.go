package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// repositoryOf answers commands from a table.
func repositoryOf(answers map[string]string) *repository {
	return &repository{root: "/repo", run: func(_ context.Context, directory, program string, args ...string) (string, error) {
		command := strings.Join(append([]string{program}, args...), " ")
		for prefix, answer := range answers {
			if strings.HasPrefix(directory+"$ "+command, prefix) {
				return answer, nil
			}
		}
		return "", errors.New("exit status 128: " + command)
	}}
}

func TestBase(t *testing.T) {
	const head, git = "/repo$ git rev-parse HEAD", "/repo$ git "
	for name, tc := range map[string]struct {
		asked   string
		answers map[string]string
		want    string
	}{
		"asked for":           {"v1.0", map[string]string{git + "rev-parse --verify v1.0^{commit}": "c1\n"}, "c1 v1.0 <nil>"},
		"asked for in vain":   {"v9.0", nil, " v9.0 exit status 128: git rev-parse --verify v9.0^{commit}"},
		"origin/main":         {"", map[string]string{head: "c2\n", git + "merge-base HEAD origin/main": "c1\n"}, "c1 merge base with origin/main <nil>"},
		"main":                {"", map[string]string{head: "c2\n", git + "merge-base HEAD main": "c1\n"}, "c1 merge base with main <nil>"},
		"pushed, beside main": {"", map[string]string{head: "c2\n", git + "merge-base HEAD origin/main": "c2\n", git + "merge-base HEAD main": "c1\n"}, "c1 merge base with main <nil>"},
		"on main":             {"", map[string]string{head: "c2\n", git + "merge-base HEAD main": "c2\n", git + "rev-parse --verify HEAD~1^{commit}": "c1\n"}, "c1 HEAD~1 <nil>"},
		"first commit":        {"", map[string]string{head: "c2\n"}, "  no commit to compare HEAD with, set BASE: exit status 128: git rev-parse --verify HEAD~1^{commit}"},
	} {
		t.Run(name, func(t *testing.T) {
			commit, is, err := repositoryOf(tc.answers).base(t.Context(), tc.asked)
			if got := fmt.Sprint(commit, " ", is, " ", err); got != tc.want {
				t.Errorf("base() = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestChanged(t *testing.T) {
	r := repositoryOf(map[string]string{
		"/repo$ git diff --name-only --no-renames c1": "b/b.go\na/with space.go\n", "/repo$ git ls-files --others": "a/new.go\nb/b.go\n",
	})
	got, err := r.changed(t.Context(), "c1")
	if want := []string{"a/new.go", "a/with space.go", "b/b.go"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("changed() = %q, %v, want %q", got, err, want)
	}
}

func TestPackages(t *testing.T) {
	r := repositoryOf(map[string]string{
		"/repo$ go list":      `{"Dir": "/repo/a", "ImportPath": "m/a", "Imports": ["fmt"], "TestGoFiles": ["a_test.go"], "TestImports": ["m/b"], "XTestImports": ["m/c"]}` + "\n" + `{"Dir": "/repo", "ImportPath": "m"}`,
		"/repo/test$ go list": `{"Dir": "/repo/test/x", "ImportPath": "m/test/x", "XTestGoFiles": ["x_test.go"]}`,
	})
	all, err := r.packages(t.Context(), []string{".", "test"})
	if err != nil || len(all) != 3 {
		t.Fatalf("packages() = %v, %v, want 3", all, err)
	}
	for i, want := range []string{
		"{a m/a . true [fmt] [m/b m/c]}", "{. m . false [] []}", "{test/x m/test/x test true [] []}",
	} {
		if got := fmt.Sprint(*all[i]); got != want {
			t.Errorf("package %d = %s, want %s", i, got, want)
		}
	}
}

// graph returns packages: name, imports and imports of tests. Packages with lower-case names that end in "0" have no
// tests.
func graph(rows ...[3]string) []*pkg {
	var all []*pkg
	for _, row := range rows {
		all = append(all, &pkg{
			directory: row[0], path: "m/" + row[0], tests: !strings.HasSuffix(row[0], "0"),
			imports: paths(row[1]), testImports: paths(row[2]),
		})
	}
	return all
}

func paths(names string) []string {
	var all []string
	for name := range strings.FieldsSeq(names) {
		all = append(all, "m/"+name)
	}
	return all
}

func names(all []*pkg) string {
	var list []string
	for _, p := range all {
		list = append(list, p.directory)
	}
	return strings.Join(list, " ")
}

func TestOwners(t *testing.T) {
	all := graph([3]string{"."}, [3]string{"a"}, [3]string{"a/b"}, [3]string{"c/d"})
	for files, want := range map[string]string{
		"a/a.go": "a", "a/b/b.go": "a/b", "a/b/testdata/x/in.yaml": "a/b", "a/docs/x.md": "a", "c/c.md": ".", "README.md": ".",
		"a/a.go a/b/b.go a/b/c.go": "a a/b", "gone/gone.go": ".",
	} {
		if got := names(owners(all, strings.Fields(files))); got != want {
			t.Errorf("owners() of %s = %s, want %s", files, got, want)
		}
	}
	if got := owners(all[1:], []string{"README.md"}); got != nil {
		t.Errorf("owners() of a file outside all packages = %v", got)
	}
}

func TestAffected(t *testing.T) {
	all := graph(
		[3]string{"api0"},               // has no tests
		[3]string{"view", "api0"},       // distance one from api0
		[3]string{"agents", "view"},     // two
		[3]string{"cmd", "agents api0"}, // one
		[3]string{"rig", "", "view"},    // only its tests import it
		[3]string{"user", "rig"},        // an importer of a package of which only the tests import a changed one
		[3]string{"test/feature", "", "agents"},
		[3]string{"other", "", "user"},
	)
	byName := func(list string) (found []*pkg) {
		for _, p := range all {
			if slices.Contains(strings.Fields(list), p.directory) {
				found = append(found, p)
			}
		}
		return found
	}
	for changed, want := range map[string]string{
		"api0":        "cmd view agents rig test/feature",
		"view":        "view agents rig cmd test/feature",
		"rig":         "rig user other",
		"other":       "other",
		"agents user": "agents user cmd other test/feature",
		"":            "",
	} {
		if got := names(affected(all, byName(changed))); got != want {
			t.Errorf("affected() by %s = %s, want %s", changed, got, want)
		}
	}
}
