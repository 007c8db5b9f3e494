package chart

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/harness"
)

var documentedRole = regexp.MustCompile("(?s)```yaml\n([^`]*kind: Role\n[^`]*)```")

// SondectlRole returns the Role for users of sondectl from docs/kubernetes.md, so that tests use a reader's rights.
func SondectlRole() (*rbacv1.Role, error) {
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "kubernetes.md"))
	if err != nil {
		return nil, fmt.Errorf("read the docs: %w", err)
	}
	found := documentedRole.FindSubmatch(page)
	if found == nil {
		return nil, errors.New("docs/kubernetes.md has no Role")
	}
	role := &rbacv1.Role{}
	if err := yaml.UnmarshalStrict(found[1], role); err != nil {
		return nil, fmt.Errorf("decode the Role of docs/kubernetes.md: %w", err)
	}
	return role, nil
}
