package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/watchdog/leases"
)

var codecs = scheme.Codecs.WithoutConversion()

// leaseNamespace is the namespace of node leases.
const leaseNamespace = "kube-node-lease"

// acceptMetadata requests only metadata, since whole nodes are large.
const acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// goingTaints are set by the cluster autoscaler and Karpenter on nodes about to be deleted. The last one is from
// Karpenter before its first release.
var goingTaints = []string{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"}

// Nodes returns the zones of nodes by node name, without nodes being deleted.
func (p *Probe) Nodes(ctx context.Context) (map[string]string, error) {
	zones := map[string]string{}
	client, err := p.clientFor(metadata.ConfigFor(p.config), corev1.SchemeGroupVersion)
	if err != nil {
		return nil, explainAnswer("list nodes", err)
	}
	err = p.eachPage(func(o metav1.ListOptions) (string, error) {
		answer, err := client.Get().Resource("nodes").SetHeader("Accept", acceptMetadata).
			VersionedParams(&o, scheme.ParameterCodec).MaxRetries(0).Do(ctx).Get()
		if err != nil {
			return "", err //nolint:wrapcheck // explainAnswer wraps
		}
		page, ok := answer.(*metav1.PartialObjectMetadataList)
		if !ok {
			return "", runtime.NewNotRegisteredErrForType(answer.GetObjectKind().GroupVersionKind().Kind, nil)
		}
		for i := range page.Items {
			n := &page.Items[i]
			zone := n.Labels[corev1.LabelTopologyZone]
			if err := checkNames(len(zones), n.Name, zone); err != nil {
				return "", err
			}
			if n.DeletionTimestamp == nil {
				zones[n.Name] = zone
			}
		}
		return page.Continue, nil
	})
	if err != nil {
		return nil, explainAnswer("list nodes", err)
	}
	return zones, nil
}

// Going returns the names of nodes that the cluster autoscaler or Karpenter has tainted for deletion. It reads whole
// nodes.
func (p *Probe) Going(ctx context.Context) ([]string, error) {
	var going []string
	client, err := p.clientFor(p.config, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, explainAnswer("list nodes with their taints", err)
	}
	err = p.eachPage(func(o metav1.ListOptions) (string, error) {
		var page corev1.NodeList
		if err := client.Get().Resource("nodes").VersionedParams(&o,
			scheme.ParameterCodec).MaxRetries(0).Do(ctx).Into(&page); err != nil {
			return "", err //nolint:wrapcheck // explainAnswer wraps
		}
		for i := range page.Items {
			n := &page.Items[i]
			if err := checkNames(len(going), n.Name); err != nil {
				return "", err
			}
			if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return slices.Contains(goingTaints, t.Key) }) {
				going = append(going, n.Name)
			}
		}
		return page.Continue, nil
	})
	if err != nil {
		return nil, explainAnswer("list nodes with their taints", err)
	}
	return going, nil
}

// Leases returns the node leases that have renewTime, and when the read began.
func (p *Probe) Leases(ctx context.Context) (at time.Time, all []leases.Lease, err error) {
	client, err := p.clientFor(p.config, coordinationv1.SchemeGroupVersion)
	if err != nil {
		return time.Time{}, nil, explainAnswer("list leases", err)
	}
	at = time.Now()
	err = p.eachPage(func(o metav1.ListOptions) (string, error) {
		var page coordinationv1.LeaseList
		if err := client.Get().Namespace(leaseNamespace).Resource("leases").VersionedParams(&o,
			scheme.ParameterCodec).MaxRetries(0).Do(ctx).Into(&page); err != nil {
			return "", err //nolint:wrapcheck // explainAnswer wraps
		}
		for i := range page.Items {
			l := &page.Items[i]
			if err := checkNames(len(all), l.Name); err != nil {
				return "", err
			}
			if l.Spec.RenewTime != nil {
				all = append(all, leases.Lease{Node: l.Name, Renewed: l.Spec.RenewTime.Time})
			}
		}
		return page.Continue, nil
	})
	if err != nil {
		return time.Time{}, nil, explainAnswer("list leases", err)
	}
	return at, all, nil
}

// maxPage is the initial page size, in objects.
const maxPage = 500

// eachPage requests all pages, and smaller pages if one is too large. It sets no resourceVersion, so that the data
// comes from etcd, not from a stale cache of the API server.
func (p *Probe) eachPage(ask func(metav1.ListOptions) (next string, err error)) error {
	for token := ""; ; {
		next, err := p.page(metav1.ListOptions{Limit: p.pageSize, Continue: token}, ask)
		if _, large := errors.AsType[*http.MaxBytesError](err); large && p.pageSize > 1 {
			p.pageSize = max(1, p.pageSize/4)
			continue
		}
		if err != nil || next == "" {
			return err
		}
		token = next
	}
}

// page requests one page, and holds a share of the budget until it is decoded.
func (p *Probe) page(
	o metav1.ListOptions, ask func(metav1.ListOptions) (next string, err error),
) (next string, err error) {
	limit, release := p.budget.take()
	defer release()
	p.answers.limit = limit
	return ask(o)
}

var errTooMany = fmt.Errorf("more than %d objects", maxNodes)

// checkNames returns an error if the names in a cluster need more memory than in the largest supported cluster.
func checkNames(count int, names ...string) error {
	if count >= maxNodes {
		return errTooMany
	}
	for _, name := range names {
		if len(name) > validation.DNS1123SubdomainMaxLength {
			return errUnreadable
		}
	}
	return nil
}

func (p *Probe) clientFor(config *rest.Config, version schema.GroupVersion) (*rest.RESTClient, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath = &version, "/apis"
	if version.Group == "" {
		c.APIPath = "/api"
	}
	if c.NegotiatedSerializer == nil {
		c.NegotiatedSerializer = codecs
		c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf,
			runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	}
	return rest.RESTClientForConfigAndClient(c, p.client) //nolint:wrapcheck // explainAnswer wraps
}
