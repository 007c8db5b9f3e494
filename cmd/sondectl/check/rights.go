package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

// right is a permission in RBAC.
type right struct {
	verb, group, resource string // with the subresource after a slash
	name                  string // of one object, "" for all
	namespaced            bool   // only in the control plane's namespace
}

func (r right) String() string {
	text := r.verb + " " + r.resource
	if r.group != "" {
		text = r.verb + " " + strings.Replace(r.resource+"/", "/", "."+r.group+"/", 1)
		text = strings.TrimSuffix(text, "/")
	}
	if r.name != "" {
		text += " named " + r.name
	}
	return text
}

// answer says whether RBAC allows a right.
type answer struct {
	right
	allowed bool
}

// toInstall lists the rights of a user who installs the chart. Helm stores releases in Secrets.
var toInstall = []right{
	{verb: "create", resource: "namespaces"},
	{verb: "create", resource: "secrets", namespaced: true},
	{verb: "create", resource: "configmaps", namespaced: true},
	{verb: "create", resource: "services", namespaced: true},
	{verb: "create", resource: "serviceaccounts", namespaced: true},
	{verb: "create", group: "apps", resource: "deployments", namespaced: true},
	{verb: "create", group: "policy", resource: "poddisruptionbudgets", namespaced: true},
	{verb: "create", group: "batch", resource: "jobs", namespaced: true},
	{verb: "create", group: rbacv1.GroupName, resource: "roles", namespaced: true},
	{verb: "create", group: rbacv1.GroupName, resource: "rolebindings", namespaced: true},
	{verb: "create", group: rbacv1.GroupName, resource: "clusterroles"},
	{verb: "create", group: rbacv1.GroupName, resource: "clusterrolebindings"},
	// without escalate, a user can only grant rights that the user has
	{verb: "escalate", group: rbacv1.GroupName, resource: "clusterroles"},
	{verb: "create", group: "apiextensions.k8s.io", resource: "customresourcedefinitions"},
	{verb: "create", group: "admissionregistration.k8s.io", resource: "mutatingwebhookconfigurations"},
	{verb: "create", group: "admissionregistration.k8s.io", resource: "validatingwebhookconfigurations"},
	{verb: "create", group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicies"},
	{verb: "create", group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicybindings"},
}

// planeRules lists the rights that the chart gives the control plane in the cluster and in its own namespace, except
// retryAfterOutage's. A test compares the list with the chart.
func planeRules() (cluster, own []rbacv1.PolicyRule) {
	rule := func(group string, resources, verbs []string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs, ResourceNames: names}
	}
	read, create, patch := []string{"list", "watch"}, []string{"create"}, []string{"patch"}
	cluster = []rbacv1.PolicyRule{
		rule("", []string{"pods", "services", "namespaces", "nodes"}, read),
		rule("discovery.k8s.io", []string{"endpointslices"}, read),
		rule("lifecycle.k8s.io", []string{"evictionrequests"}, read),
		rule("sonde.dev", []string{"meshes", "dataplanes"}, read),
		rule("sonde.dev", []string{"meshes"}, create),
		rule("sonde.dev", []string{"meshes/status", "dataplanes/status"}, patch),
		rule("authentication.k8s.io", []string{"tokenreviews"}, create),
		rule("authorization.k8s.io", []string{"subjectaccessreviews"}, create),
		rule("events.k8s.io", []string{"events"}, []string{"create", "patch"}),
		rule("sonde.dev", []string{"restartgrants"}, []string{"list", "watch", "create", "delete"}),
		rule("sonde.dev", []string{"restartgrants/status", "restartbudgets/status"}, patch),
		rule("sonde.dev", []string{"restartbudgets"}, read),
		rule("", []string{"events"}, []string{"list"}),
		rule("apps", []string{"deployments", "statefulsets", "daemonsets"}, read),
		rule("policy", []string{"poddisruptionbudgets"}, read),
		rule("", []string{"pods/status"}, patch),
		rule("apps", []string{"replicasets"}, []string{"get"}),
		rule("admissionregistration.k8s.io", []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"},
			[]string{"list", "watch", "patch"}, configurationName),
	}
	own = []rbacv1.PolicyRule{
		rule("", []string{"secrets"}, []string{"get", "list", "watch", "create", "update"}),
		rule("coordination.k8s.io", []string{"leases"}, create),
		rule("coordination.k8s.io", []string{"leases"}, []string{"get", "update"}, serviceName),
		rule("", []string{"configmaps"}, []string{"list", "watch", "patch", "create"}, "sonde-serving-ca"),
	}
	return cluster, own
}

// ofPlane returns the rights that a cluster's control plane needs.
func ofPlane(server string, caOfOthers bool) []right {
	cluster, own := planeRules()
	var all []right
	add := func(rules []rbacv1.PolicyRule, namespaced bool) {
		for _, r := range rules {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					name := ""
					if len(r.ResourceNames) > 0 {
						name = r.ResourceNames[0]
					}
					all = append(all, right{verb, r.APIGroups[0], resource, name, namespaced})
				}
			}
		}
	}
	add(cluster, false)
	add(own, true)
	v, err := version.ParseGeneric(server)
	return slices.DeleteFunc(all, func(r right) bool {
		return r.resource == "pods/status" && err == nil && v.LessThan(policies) || caOfOthers && r.group == "admissionregistration.k8s.io"
	})
}

// askRights checks the rights of the caller, or of an installed control plane, by API requests.
func (r *reader) askRights(ctx context.Context) read[[]answer] {
	rights, ask := toInstall, r.mayI
	if r.f.installed {
		rights, ask = ofPlane(r.f.server, r.caOfOthers(ctx)), r.mayPlane
	}
	answers, err := r.answers(ctx, rights, r.f.namespace, ask)
	return readAs(r.in, "check rights", answers, err)
}

// answers checks rights, in one namespace if it is not "".
func (r *reader) answers(
	ctx context.Context, rights []right, namespace string,
	ask func(context.Context, *authorizationv1.ResourceAttributes) (bool, error),
) ([]answer, error) {
	answers := make([]answer, len(rights))
	var group errgroup.Group
	group.SetLimit(requestsAtOnce)
	for i, is := range rights {
		group.Go(func() error {
			resource, subresource, _ := strings.Cut(is.resource, "/")
			attributes := &authorizationv1.ResourceAttributes{
				Verb: is.verb, Group: is.group, Resource: resource, Subresource: subresource, Name: is.name,
			}
			if is.namespaced {
				attributes.Namespace = namespace
			}
			allowed, err := ask(ctx, attributes)
			answers[i] = answer{is, allowed}
			return err
		})
	}
	return answers, group.Wait()
}

func (r *reader) mayI(ctx context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
	is, err := r.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: a},
	}, metav1.CreateOptions{})
	return err == nil && is.Status.Allowed, err
}

func (r *reader) mayPlane(ctx context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
	is, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			ResourceAttributes: a, User: "system:serviceaccount:" + r.f.namespace + ":" + serviceName,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + r.f.namespace, "system:authenticated"},
		},
	}, metav1.CreateOptions{})
	return err == nil && is.Status.Allowed, err
}

// caOfOthers reports whether a program other than the control plane writes the webhook's CA. It returns false if the
// configuration cannot be read.
func (r *reader) caOfOthers(ctx context.Context) bool {
	configurations := r.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	is, err := configurations.Get(ctx, configurationName, metav1.GetOptions{})
	return err == nil && is.Annotations["cert-manager.io/inject-ca-from"] != ""
}

// yourRights reports rights that the caller lacks to install the chart.
var yourRights = check{"your rights", (*facts).needsRights, func(f *facts, l *lines) {
	l.failOf(missingOf(f.rights.is), "you lack rights to create all objects of the chart",
		"install as a user with these rights, for example with the ClusterRole cluster-admin")
	l.ok("you have the rights to create all objects of the chart")
}}

// planeRights reports rights of the chart that the control plane lacks.
var planeRights = check{"rights of the control plane", (*facts).needsRights, func(f *facts, l *lines) {
	l.failOf(missingOf(f.rights.is),
		fmt.Sprintf("service account %s in namespace %s lacks rights", serviceName, f.namespace),
		"upgrade to this release of the chart, which grants them, or find out who has removed them")
	l.ok(fmt.Sprintf("service account %s has all rights", serviceName))
}}

func missingOf(answers []answer) []string {
	var missing []string
	for _, a := range answers {
		if !a.allowed {
			missing = append(missing, a.String())
		}
	}
	return missing
}
