// Package kubeconfig explains errors of a kubeconfig in terms of its fields.
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

// Explain returns err, which client-go returned for these files. If a file has a value of the wrong type, it returns
// errors that name the fields instead. It does not quote values of users, which may be secret.
func Explain(err error, files ...string) error {
	for _, file := range files {
		text, readErr := os.ReadFile(file)
		if readErr != nil {
			continue // err already reports this
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
