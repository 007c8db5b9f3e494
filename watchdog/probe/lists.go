package probe

import (
	"context"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/watchdog/leases"
)

var codecs = scheme.Codecs.WithoutConversion()

// leaseNamespace has the leases of nodes.
const leaseNamespace = "kube-node-lease"

// acceptMetadata asks for objects without their specs: those of nodes are large.
const acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// goingTaints are those that the cluster autoscaler and Karpenter give to nodes that they are about to delete. Karpenter had the last one before its
// first release.
var goingTaints = []string{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"}

// Nodes returns the zones of nodes, by name. One that is being deleted is left out.
func (p *Probe) Nodes(ctx context.Context) (map[string]string, error) {
	zones := map[string]string{}
	client, err := p.clientFor(metadata.ConfigFor(p.config), corev1.SchemeGroupVersion)
	if err != nil {
		return nil, Explain("list nodes", err)
	}
	err = eachPage(func(o metav1.ListOptions) (string, error) {
		answer, err := client.Get().Resource("nodes").SetHeader("Accept", acceptMetadata).
			VersionedParams(&o, scheme.ParameterCodec).MaxRetries(0).Do(ctx).Get()
		if err != nil {
			return "", err //nolint:wrapcheck // Explain does
		}
		page, is := answer.(*metav1.PartialObjectMetadataList)
		if !is {
			return "", runtime.NewNotRegisteredErrForType(answer.GetObjectKind().GroupVersionKind().Kind, nil)
		}
		for i := range page.Items {
			if n := &page.Items[i]; n.DeletionTimestamp == nil {
				zones[n.Name] = n.Labels[corev1.LabelTopologyZone]
			}
		}
		return page.Continue, nil
	})
	if err != nil {
		return nil, Explain("list nodes", err)
	}
	return zones, nil
}

// Going returns the names of the nodes with a taint of the cluster autoscaler's or Karpenter's: they are about to be deleted. It reads whole nodes.
func (p *Probe) Going(ctx context.Context) ([]string, error) {
	var going []string
	client, err := p.clientFor(p.config, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, Explain("list nodes with their taints", err)
	}
	err = eachPage(func(o metav1.ListOptions) (string, error) {
		var page corev1.NodeList
		if err := client.Get().Resource("nodes").VersionedParams(&o, scheme.ParameterCodec).MaxRetries(0).Do(ctx).Into(&page); err != nil {
			return "", err //nolint:wrapcheck // Explain does
		}
		for i := range page.Items {
			if slices.ContainsFunc(page.Items[i].Spec.Taints, func(t corev1.Taint) bool { return slices.Contains(goingTaints, t.Key) }) {
				going = append(going, page.Items[i].Name)
			}
		}
		return page.Continue, nil
	})
	if err != nil {
		return nil, Explain("list nodes with their taints", err)
	}
	return going, nil
}

// Leases returns those of nodes, and when they began to be read. One without renewTime is left out.
func (p *Probe) Leases(ctx context.Context) (at time.Time, all []leases.Lease, err error) {
	client, err := p.clientFor(p.config, coordinationv1.SchemeGroupVersion)
	if err != nil {
		return time.Time{}, nil, Explain("list leases", err)
	}
	at = time.Now()
	err = eachPage(func(o metav1.ListOptions) (string, error) {
		var page coordinationv1.LeaseList
		if err := client.Get().Namespace(leaseNamespace).Resource("leases").VersionedParams(&o, scheme.ParameterCodec).MaxRetries(0).Do(ctx).Into(&page); err != nil {
			return "", err //nolint:wrapcheck // Explain does
		}
		for i := range page.Items {
			if l := &page.Items[i]; l.Spec.RenewTime != nil {
				all = append(all, leases.Lease{Node: l.Name, Renewed: l.Spec.RenewTime.Time})
			}
		}
		return page.Continue, nil
	})
	if err != nil {
		return time.Time{}, nil, Explain("list leases", err)
	}
	return at, all, nil
}

// eachPage asks for one page after the other. Without a resourceVersion they are what etcd has, not what a cache of the API server may have kept.
func eachPage(ask func(metav1.ListOptions) (next string, err error)) error {
	o := metav1.ListOptions{Limit: pageSize}
	for {
		next, err := ask(o)
		if err != nil || next == "" {
			return err
		}
		o.Continue = next
	}
}

func (p *Probe) clientFor(config *rest.Config, version schema.GroupVersion) (*rest.RESTClient, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath = &version, "/apis"
	if version.Group == "" {
		c.APIPath = "/api"
	}
	if c.NegotiatedSerializer == nil {
		c.NegotiatedSerializer = codecs
		c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	}
	return rest.RESTClientForConfigAndClient(c, p.client) //nolint:wrapcheck // Explain does
}
