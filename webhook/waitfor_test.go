package webhook_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/webhook"
)

// Commands that wait for a connection do not wait with Envoy.
func TestInitContainersThatConnect(t *testing.T) {
	tests := map[string]struct {
		container string
		form      webhook.Form
		want      string
	}{
		"in a shell":         {container: `command: [sh, -c, "until nc -z db 5432; do sleep 1; done"]`, want: `"nc -z"`},
		"with flags":         {container: `command: [nc], args: [-w, "2", -vz, db, "5432"]`, want: `"nc -w 2 -vz"`},
		"wait-for-it":        {container: `command: [/wait-for-it.sh, "db:5432"]`, want: `"wait-for-it"`},
		"wait-for":           {container: `command: [/wait-for.sh, "db:5432"]`, want: `"wait-for.sh db:5432"`},
		"dockerize":          {container: `command: [dockerize], args: [-wait, "tcp://db:5432"]`, want: `"dockerize -wait tcp://"`},
		"bash":               {container: `command: [bash, -c, "until (: </dev/tcp/db/5432); do sleep 1; done"]`, want: `"/dev/tcp/"`},
		"an answer":          {container: `command: [sh, -c, "until pg_isready -h db; do sleep 1; done"]`},
		"dockerize, HTTP":    {container: `command: [dockerize, -wait, "http://web/ready"]`},
		"wait-for, HTTP":     {container: `command: [wait-for, "http://web:80/ready"]`},
		"another command":    {container: `command: [./wait-for-migrations, rsync -z]`},
		"a native sidecar":   {container: `restartPolicy: Always, command: [nc, -z, db, "5432"]`},
		"before the sidecar": {container: `command: [nc, -z, db, "5432"]`, form: webhook.Container},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := parse(fmt.Sprintf("spec: {containers: [{name: app}], initContainers: [{name: wait, %s}]}", tc.container))
			_, warnings := inject(t, pod, webhook.Options{Sidecar: tc.form})
			warned := strings.Join(warnings, "\n")
			if strings.Contains(warned, "does not wait") != (tc.want != "") || !strings.Contains(warned, tc.want) {
				t.Errorf("warnings %q, want %s", warnings, tc.want)
			}
		})
	}
}
