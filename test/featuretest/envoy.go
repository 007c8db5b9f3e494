package featuretest

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/sonde-mesh/sonde/xds/resource"
)

const markerPrefix = "featuretest-marker-"

// read reads responses until the stream ends.
func (c *Client) read(w Wire) {
	for {
		r, err := w.Recv()
		c.mu.Lock()
		gate := c.paused
		c.mu.Unlock()
		if gate != nil {
			<-gate
		}
		c.mu.Lock()
		if err != nil {
			c.err = err
		} else {
			c.take(r)
		}
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// take handles a response. It needs mu, like all functions below.
func (c *Client) take(r *Response) {
	c.nonce[r.Type] = r.Nonce
	if c.isMarker(r) {
		c.reply(r, "")
		return
	}
	c.received++
	if c.manual {
		c.inbox = append(c.inbox, r)
		c.apply(r, r.Put)
		return
	}
	good, refusal := c.judge(r)
	gone := c.apply(r, good)
	c.note(r, refusal)
	c.follow(r.Type, good, gone)
	if refusal == "" && r.Type == resource.Cluster && len(c.warming) > 0 {
		c.withheld = r
		return
	}
	c.reply(r, refusal)
	if c.withheld != nil && len(c.warming) == 0 {
		c.reply(c.withheld, "")
		c.withheld = nil
	}
}

// isMarker removes the answers to Sync from a response, and says whether it contained nothing else.
func (c *Client) isMarker(r *Response) bool {
	count := len(r.Put) + len(r.Gone)
	mine := func(name string) bool {
		if strings.HasPrefix(name, markerPrefix) {
			c.markers[name] = true
			return true
		}
		return false
	}
	r.Put = slices.DeleteFunc(r.Put, func(i Item) bool { return mine(i.Name) })
	r.Gone = slices.DeleteFunc(r.Gone, mine)
	return count > 0 && len(r.Put)+len(r.Gone) == 0
}

// judge returns the resources of a response that Envoy would apply, and its message about the others. Of clusters and
// listeners it applies all good ones, of endpoints and routes those before the first bad one.
func (c *Client) judge(r *Response) (good []Item, refusal string) {
	var reasons []string
	for _, i := range r.Put {
		reason := c.refuse[resource.Name{Type: r.Type, Name: i.Name}]
		switch {
		case reason == "" && (wild(r.Type) || len(reasons) == 0):
			good = append(good, i)
		case reason == "":
		case wild(r.Type):
			reasons = append(reasons, i.Name+": "+reason)
		default:
			reasons = append(reasons, reason)
		}
	}
	switch {
	case len(reasons) == 0:
		return good, ""
	case r.Type == resource.Cluster:
		return good, "Error adding/updating cluster(s) " + strings.Join(reasons, ", ")
	case r.Type == resource.Listener:
		return good, "Error adding/updating listener(s) " + strings.Join(reasons, "\n") + "\n"
	}
	return good, reasons[0]
}

// apply stores the good resources, writes the log, and returns the removed names. A list of SotW is logged as its changes.
func (c *Client) apply(r *Response, good []Item) (gone []string) {
	line := []string{r.Type.Short()}
	whole := c.protocol == SotW && wild(r.Type)
	for _, i := range r.Put {
		if whole && c.has[resource.Name{Type: r.Type, Name: i.Name}].Version == i.Version {
			continue
		}
		line = append(line, i.Name)
	}
	gone = r.Gone
	if whole {
		gone = nil
		for n := range c.has {
			if n.Type == r.Type && !slices.ContainsFunc(r.Put, func(i Item) bool { return i.Name == n.Name }) {
				gone = append(gone, n.Name)
			}
		}
	}
	slices.Sort(line[1:])
	slices.Sort(gone)
	for _, name := range gone {
		line = append(line, "-"+name)
		delete(c.has, resource.Name{Type: r.Type, Name: name})
	}
	c.log = append(c.log, strings.Join(line, " "))
	if r.Type == resource.Cluster {
		c.warm(good)
	}
	for _, i := range good {
		if wild(r.Type) || c.names[r.Type][i.Name] { // otherwise it was sent before the server knew that it is not needed any more
			c.has[resource.Name{Type: r.Type, Name: i.Name}] = i
		}
	}
	return gone
}

// warm notes the clusters that now wait for endpoints.
func (c *Client) warm(clusters []Item) {
	for _, i := range clusters {
		if name := endpointsOf(i); name != "" && c.has[resource.Name{Type: resource.Cluster, Name: i.Name}].Version != i.Version {
			c.warming[name] = true
		}
	}
}

// follow subscribes to what is needed now, before the answer is sent.
func (c *Client) follow(t resource.Type, good []Item, gone []string) {
	switch t {
	case resource.Cluster:
		var add, remove []string
		for _, i := range good {
			if name := endpointsOf(i); name != "" && !c.names[resource.Endpoint][name] {
				add = append(add, name)
			}
		}
		for _, name := range gone {
			delete(c.warming, name)
			if c.names[resource.Endpoint][name] {
				remove = append(remove, name)
			}
		}
		c.subscribe(resource.Endpoint, add, remove)
	case resource.Endpoint:
		for _, i := range good {
			delete(c.warming, i.Name)
		}
		for _, name := range gone {
			delete(c.warming, name)
		}
	case resource.Listener:
		var add []string
		for _, i := range good {
			for _, name := range routesOf(i) {
				if !c.names[resource.Route][name] {
					add = append(add, name)
				}
			}
		}
		c.subscribe(resource.Route, add, nil)
	case resource.Route:
		c.subscribe(resource.Route, nil, slices.DeleteFunc(slices.Clone(gone), func(name string) bool { return !c.names[t][name] }))
	}
}

func (c *Client) subscribe(t resource.Type, add, remove []string) {
	if len(add)+len(remove) > 0 {
		c.request(&Request{Type: t, Add: add, Remove: remove})
	}
}

// note stores what the client names when it reconnects, even if its answer has not been sent by then. Resources of a refused
// response are not named, even if they were applied.
func (c *Client) note(r *Response, refusal string) {
	for _, i := range r.Put {
		n := resource.Name{Type: r.Type, Name: i.Name}
		delete(c.acked, n)
		if refusal == "" {
			c.acked[n] = i.Version
		}
	}
	for n := range c.acked {
		if _, ok := c.has[n]; !ok {
			delete(c.acked, n)
		}
	}
}

func (c *Client) reply(r *Response, refusal string) {
	if refusal == "" {
		c.version[r.Type] = r.Version
	}
	c.request(&Request{Type: r.Type, Nonce: r.Nonce, Refusal: refusal})
}

// endpointsOf returns the assignment that a cluster asks for, "" if it needs none.
func endpointsOf(i Item) string {
	m := &clusterv3.Cluster{}
	if err := i.Body.UnmarshalTo(m); err != nil || m.GetType() != clusterv3.Cluster_EDS {
		return ""
	}
	if name := m.GetEdsClusterConfig().GetServiceName(); name != "" {
		return name
	}
	return m.GetName()
}

// routesOf returns the route configurations that a listener asks for.
func routesOf(i Item) []string {
	m := &listenerv3.Listener{}
	if err := i.Body.UnmarshalTo(m); err != nil {
		return nil
	}
	var names []string
	for _, chain := range append(m.GetFilterChains(), m.GetDefaultFilterChain()) {
		for _, filter := range chain.GetFilters() {
			hcm := &hcmv3.HttpConnectionManager{}
			if filter.GetTypedConfig().UnmarshalTo(hcm) == nil && hcm.GetRds() != nil {
				names = append(names, hcm.GetRds().GetRouteConfigName())
			}
		}
	}
	return names
}
