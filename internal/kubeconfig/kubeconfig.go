// Package kubeconfig says what is wrong with a kubeconfig, in terms of its fields.
package kubeconfig

import (
	"errors"
	"fmt"
	"os"
	"strings"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Explain returns err, which client-go has returned for these files, or where a file has a value of a wrong type in its place the errors that
// name its field. A value of a user, which may be a secret, is not quoted.
func Explain(err error, files ...string) error {
	for _, file := range files {
		text, readErr := os.ReadFile(file)
		if readErr != nil {
			continue // err says it
		}
		body, yamlErr := yaml.YAMLToJSON(text)
		if yamlErr != nil {
			continue
		}
		var config clientcmdv1.Config
		if kjson.UnmarshalCaseSensitivePreserveInts(body, &config) == nil {
			continue
		}
		wrong := mesh.ExplainJSON("", body, &config)
		hideUsers(wrong)
		return fmt.Errorf("%s: %w", file, wrong)
	}
	return err
}

func hideUsers(err error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return
	}
	for _, e := range joined.Unwrap() {
		if field, ok := errors.AsType[*mesh.FieldError](e); ok && strings.HasPrefix(field.Field, "users[") {
			field.Value = ""
		}
	}
}
