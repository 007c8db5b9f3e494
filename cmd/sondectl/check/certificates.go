package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// How long before its end a certificate is warned of: CAs take an operator, the certificate of the control plane is renewed ten days before.
const (
	caNear      = 30 * 24 * time.Hour
	servingNear = 5 * 24 * time.Hour
)

// ending is a certificate that ends.
type ending struct {
	what string
	at   time.Time
	near time.Duration // how long before it is warned of
	// effect is what does not work after its end, and do what is to be done before.
	effect, do string
}

// certificates says which certificates have ended, or end soon.
var certificates = check{name: "certificates", say: func(f *facts, l *lines) {
	if f.servingCA.err != nil {
		l.unread(f.servingCA.err)
	}
	var all []ending
	for _, c := range f.servingCA.is {
		all = append(all, ending{
			"the CA of the control plane", c.NotAfter, caNear, "no agent connects any more",
			"sondectl rotate serving-ca (docs/guides/serving-ca.md)",
		})
	}
	all = append(all, f.webhookCAs(l)...)
	if c := f.admin.is.serving; c != nil {
		all = append(all, ending{
			"the certificate of the control plane", c.NotAfter, servingNear, "no agent connects any more",
			"see the log of the control plane, which renews it ten days before: it says why not",
		})
	}
	all = append(all, meshEndings(f.admin.is.meshes)...)
	for _, e := range all {
		e.say(f.now, l)
	}
	l.failOf(f.leaves(),
		"certificates of proxies are not renewed although their agents are connected: they serve until these end",
		"kubectl logs POD -c kuma-sidecar says why")
	if len(all) > 0 {
		first := slices.MinFunc(all, func(a, b ending) int { return a.at.Compare(b.at) })
		number := printer.Plural(len(all), "certificate")
		l.ok(fmt.Sprintf("%s, the first to end at %s: %s", number, stamp(first.at), first.what))
	}
}}

// say says that the certificate has ended, or ends soon.
func (e *ending) say(now time.Time, l *lines) {
	switch {
	case !now.Before(e.at):
		l.fail(fmt.Sprintf("%s has ended at %s: %s", e.what, stamp(e.at), e.effect), e.do)
	case now.Add(e.near).After(e.at):
		l.warn(fmt.Sprintf("%s ends at %s, in %s: then %s", e.what, stamp(e.at), left(e.at.Sub(now)), e.effect), e.do)
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// left says a time that is left.
func left(d time.Duration) string {
	if d >= 48*time.Hour {
		return fmt.Sprintf("%d days", int(d.Hours())/24)
	}
	return d.Round(time.Minute).String()
}

// webhookCAs returns when the CAs in webhook configurations expire that the control plane does not serve with, and reports the configurations without a
// CA.
func (f *facts) webhookCAs(l *lines) (all []ending) {
	seen := slices.Clone(f.servingCA.is)
	empty := map[string]bool{}
	add := func(kind string, bundle []byte) {
		where := kind + " " + configurationName
		if len(bundle) == 0 && !empty[where] {
			empty[where] = true
			l.fail(where+" has no caBundle, so that the API server does not trust the webhook",
				"see the log of the leading replica, which writes it, or of cert-manager's CA injector where that does")
		}
		for _, c := range parsePEM(bundle) {
			if slices.ContainsFunc(seen, c.Equal) {
				continue
			}
			seen = append(seen, c)
			all = append(all, ending{
				"the CA of the webhook (caBundle of " + where + ")", c.NotAfter, caNear, "pods that are to be injected cannot be made",
				"renew it with the Secret that the chart's webhook.certificate.secretName names",
			})
		}
	}
	for i := range f.mutating.is {
		if c := &f.mutating.is[i]; c.Name == configurationName {
			for j := range c.Webhooks {
				add("MutatingWebhookConfiguration", c.Webhooks[j].ClientConfig.CABundle)
			}
		}
	}
	for i := range f.validating.is {
		if c := &f.validating.is[i]; c.Name == configurationName {
			for j := range c.Webhooks {
				add("ValidatingWebhookConfiguration", c.Webhooks[j].ClientConfig.CABundle)
			}
		}
	}
	return all
}

// meshEndings returns the ends of the CAs of meshes.
func meshEndings(meshes []*adminv1.Mesh) []ending {
	var all []ending
	for _, m := range meshes {
		if m.GetCaExpires() == nil {
			continue
		}
		name := meshOf(m).Name
		all = append(all, ending{fmt.Sprintf("the CA of mesh %q", name), m.GetCaExpires().AsTime(), caNear, "none of its proxies gets a certificate", "sondectl rotate ca --mesh " + name + " --wait"})
	}
	return all
}

// meshOf decodes a mesh. The control plane has encoded it.
func meshOf(m *adminv1.Mesh) mesh.Mesh {
	var is mesh.Mesh
	_ = json.Unmarshal(m.GetObject(), &is) // one that is of a later form is of no name, which is shown
	return is
}

// leaves returns the connected proxies with a certificate that should have been renewed: at two thirds of its validity.
func (f *facts) leaves() []string {
	validity := map[string]time.Duration{}
	for _, m := range f.admin.is.meshes {
		is := meshOf(m)
		validity[is.Name] = mesh.DefaultCertValidity
		if b := is.Backend(); b != nil && b.DPCert != nil && b.DPCert.Rotation != nil {
			validity[is.Name] = cmp.Or(time.Duration(b.DPCert.Rotation.Expiration), mesh.DefaultCertValidity)
		}
	}
	var late []string
	for _, p := range f.admin.is.proxies {
		end := p.GetAgent().GetCertificateExpires()
		if end != nil && end.AsTime().Sub(f.now) < validity[p.GetMesh()]/4 {
			late = append(late, fmt.Sprintf("%s: until %s", proxyName(p), stamp(end.AsTime())))
		}
	}
	return late
}
