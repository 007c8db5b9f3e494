package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// hints are what a user can break, and look at, while the mesh runs.
type hints struct {
	dashboard          string
	programs           string // the directory of sondectl and the application
	address, ca, token string // for sondectl
	store, logs        string
	b, c, plain, probe string // addresses of calls
	application        string
	app, agent, cp     int // processes to stop
}

func (s *scene) hints(root, dashboard string) hints {
	b := s.b[0]
	return hints{
		dashboard: dashboard, programs: filepath.Join(root, "bin"),
		address: s.machine.Admin, ca: filepath.Join(s.machine.StateDir(), "serving-ca.crt"),
		token: filepath.Join(s.machine.StateDir(), "admin-token"),
		store: s.machine.StoreDir(), logs: filepath.Join(s.machine.Dir, "logs"),
		b: s.url("b"), c: s.url("c"), plain: "http://" + b.Inbound + "/",
		probe:       fmt.Sprintf("http://%s/tcp/%d", s.virtual, portNumber(b.AppAddress)),
		application: b.AppAddress, app: b.App.PID(), agent: s.b[1].Agent.PID(), cp: s.machine.ControlPlane.PID(),
	}
}

// quote quotes a word for bash and zsh, if necessary.
func quote(word string) string {
	if strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("/.:=-_", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

// String returns the hints. Each indented line works in bash and zsh: zsh knows no comments there, and splits no
// variables.
func (h hints) String() string {
	bad := quote(filepath.Join(h.store, "bad.yaml"))
	return fmt.Sprintf(`
The mesh is complete again, and runs until Ctrl-C. Open this page:

  %[1]s

Paste this into another terminal, with bash or zsh:

  export PATH=%[2]s:"$PATH"
  export SONDECTL_ADDRESS=%[3]s
  export SONDECTL_CA_CERT_FILE=%[4]s
  export SONDECTL_TOKEN_FILE=%[5]s

Then break something. The page shows it live, status what is wrong, and why the reason:

  sondectl status
  sondectl why b-1

1. The application of b-1 dies. b-1 gets no more calls, and other replicas answer A. Then start it again:

  kill %[6]d
  sleep 2
  sondectl why b-1
  curl %[7]s
  test-app --name=b-1 --http=%[8]s &

2. The agent of b-2 hangs. The page and status report it at the next question; its Envoy still serves. Then continue it:

  kill -STOP %[9]d
  sleep 15
  sondectl status
  kill -CONT %[9]d

3. A file in the store is bad. status names the file and the line; the mesh keeps its last valid state. Then remove it:

  echo 'networking: [' > %[10]s
  sleep 1
  sondectl status
  rm %[10]s

4. The control plane hangs. The page says since when it sees nothing, and calls still succeed. Then let it go on:

  kill -STOP %[11]d
  curl %[7]s
  kill -CONT %[11]d

More to look at: what the Envoy of A sees; C, without a sidecar; B without a certificate, which is refused; a probe of
B, as the kubelet asks the agent; the logs of all processes.

  sondectl inspect dataplane a-1 --type clusters
  curl %[12]s
  curl %[13]s
  curl -i %[14]s
  ls %[15]s
`, h.dashboard, quote(h.programs), h.address, quote(h.ca), quote(h.token), h.app, h.b, h.application, h.agent, bad, h.cp,
		h.c, h.plain, h.probe, quote(h.logs))
}
