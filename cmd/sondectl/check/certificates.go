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

// Times before expiry at which check warns: operators renew CAs; the control plane renews its own certificate ten days
// before.
const (
	caNear      = 30 * 24 * time.Hour
	servingNear = 5 * 24 * time.Hour
)

// ending is the expiry of a certificate.
type ending struct {
	what string
	at   time.Time
	near time.Duration // time before expiry at which check warns
	// effect says what fails after expiry, and do what to do before.
	effect, do string
}

// certificates reports certificates that have expired or expire soon.
var certificates = check{name: "certificates", say: func(f *facts, l *lines) {
	if f.servingCA.err != nil {
		l.unread(f.servingCA.err)
	}
	var all []ending
	for _, c := range f.servingCA.is {
		all = append(all, ending{
			"the CA of the control plane", c.NotAfter, caNear, "agents can no longer connect",
			"sondectl rotate serving-ca (docs/guides/serving-ca.md)",
		})
	}
	all = append(all, f.webhookCAs(l)...)
	if c := f.admin.is.serving; c != nil {
		all = append(all, ending{
			"the certificate of the control plane", c.NotAfter, servingNear, "agents can no longer connect",
			"the control plane renews it ten days before expiry: see its log for the error",
		})
	}
	all = append(all, meshEndings(f.admin.is.meshes)...)
	for _, e := range all {
		e.say(f.now, l)
	}
	l.failOf(f.leaves(),
		"certificates of proxies are not renewed although their agents are connected: the proxies serve until the certificates expire",
		"see kubectl logs POD -c kuma-sidecar for the reason")
	if len(all) > 0 {
		first := slices.MinFunc(all, func(a, b ending) int { return a.at.Compare(b.at) })
		number := printer.Plural(len(all), "certificate")
		l.ok(fmt.Sprintf("%s, the first expires at %s: %s", number, stamp(first.at), first.what))
	}
}}

// say adds a line if the certificate has expired or expires soon.
func (e *ending) say(now time.Time, l *lines) {
	switch {
	case !now.Before(e.at):
		l.fail(fmt.Sprintf("%s expired at %s: %s", e.what, stamp(e.at), e.effect), e.do)
	case now.Add(e.near).After(e.at):
		l.warn(fmt.Sprintf("%s expires at %s, in %s: then %s", e.what, stamp(e.at), left(e.at.Sub(now)), e.effect), e.do)
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// left formats the remaining time.
func left(d time.Duration) string {
	if d >= 48*time.Hour {
		return fmt.Sprintf("%d days", int(d.Hours())/24)
	}
	return d.Round(time.Minute).String()
}

// webhookCAs returns the expiry of CAs in webhook configurations other than the control plane's, and reports
// configurations without a CA.
func (f *facts) webhookCAs(l *lines) (all []ending) {
	seen := slices.Clone(f.servingCA.is)
	empty := map[string]bool{}
	add := func(kind string, bundle []byte) {
		where := kind + " " + configurationName
		if len(bundle) == 0 && !empty[where] {
			empty[where] = true
			l.fail(where+" has no caBundle: the API server does not trust the webhook",
				"see the log of the leading replica, which writes the caBundle, or of cert-manager's CA injector if you use it")
		}
		for _, c := range parsePEM(bundle) {
			if slices.ContainsFunc(seen, c.Equal) {
				continue
			}
			seen = append(seen, c)
			all = append(all, ending{
				"the CA of the webhook (caBundle of " + where + ")", c.NotAfter, caNear,
				"pods that need injection cannot be created",
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

// meshEndings returns the expiry of the meshes' CAs.
func meshEndings(meshes []*adminv1.Mesh) []ending {
	var all []ending
	for _, m := range meshes {
		if m.GetCaExpires() == nil {
			continue
		}
		name := meshOf(m).Name
		all = append(all, ending{
			fmt.Sprintf("the CA of mesh %q", name), m.GetCaExpires().AsTime(), caNear, "its proxies get no certificates",
			"sondectl rotate ca --mesh " + name + " --wait",
		})
	}
	return all
}

// meshOf decodes a mesh that the control plane has encoded.
func meshOf(m *adminv1.Mesh) mesh.Mesh {
	var is mesh.Mesh
	_ = json.Unmarshal(m.GetObject(), &is) // a mesh in a later format has no name, and the output shows that
	return is
}

// leaves returns connected proxies whose certificate is past its renewal, which is due at two thirds of its validity.
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
