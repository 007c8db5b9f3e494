package apiserver

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// auditPolicy makes the API server log the requests of service accounts.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ["system:serviceaccounts"]}
- {level: None}
`

func (c *Cluster) auditLog() string { return filepath.Join(c.directory, "audit.log") }

// Request is a request of a service account to the API server.
type Request struct {
	// Namespace is "" for cluster-scoped objects, and for requests across all namespaces.
	Namespace, Verb, Group, Resource string
	// Name of the object; "" for several.
	Name string
	// Allowed means that a role allows the request. Role names one of these roles, as in
	// ClusterRole "sonde-cp".
	Allowed bool
	Role    string
}

// String returns the request in the form of a role's rule.
func (r Request) String() string {
	return fmt.Sprintf("%s %s %q in namespace %q", r.Verb, r.Resource, r.Group, r.Namespace)
}

// Requests returns the requests of a user, such as system:serviceaccount:shop:default.
func (c *Cluster) Requests(user string) (all []Request, err error) {
	log, err := os.Open(c.auditLog())
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb        string
			User        struct{ Username string }
			ObjectRef   *struct{ Resource, Subresource, Namespace, Name, APIGroup string }
			Annotations map[string]string

			ResponseStatus struct{ Code int }
		}
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.User.Username != user || e.ObjectRef == nil {
			continue // the last line may be incomplete
		}
		r := Request{
			Namespace: e.ObjectRef.Namespace, Verb: e.Verb, Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource,
			Name: e.ObjectRef.Name,
		}
		if s := e.ObjectRef.Subresource; s != "" {
			r.Resource += "/" + s
		}
		r.Allowed = e.Annotations["authorization.k8s.io/decision"] == "allow"
		_, r.Role, _ = strings.Cut(e.Annotations["authorization.k8s.io/reason"], " of ")
		r.Role, _, _ = strings.Cut(r.Role, " to ")
		all = append(all, r)
		if e.Verb == "patch" && e.ResponseStatus.Code == http.StatusCreated { // an apply that creates an object needs both rights
			r.Verb = "create"
			all = append(all, r)
		}
	}
	return all, lines.Err()
}
