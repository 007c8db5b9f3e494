package restarts

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const namespace = "shop"

// kind is a kind of object.
type kind struct{ apiVersion, name string }

// kinds that a replica may request, by resource. Most have no objects.
var kinds = map[string]kind{
	"pods": {"v1", "Pod"}, "namespaces": {"v1", "Namespace"}, "nodes": {"v1", "Node"}, "deployments": {"apps/v1", "Deployment"},
	"statefulsets": {"apps/v1", "StatefulSet"}, "daemonsets": {"apps/v1", "DaemonSet"}, "replicasets": {"apps/v1", "ReplicaSet"},
	"poddisruptionbudgets": {"policy/v1", "PodDisruptionBudget"}, "events": {"v1", "Event"},
	grants: {"sonde.dev/v1alpha1", "RestartGrant"}, "restartbudgets": {"sonde.dev/v1alpha1", "RestartBudget"},
}

const grants = "restartgrants"

// event is a change of an object.
type event struct {
	version  int
	at       time.Time
	resource string
	kind     string // ADDED, MODIFIED, DELETED
	object   []byte
}

// apiServer has objects as JSON, and all their events in order.
type apiServer struct {
	// wrote is called for each change of a grant, in order. It must not call the server.
	wrote func(kind string, grant []byte)

	mu        sync.Mutex
	version   int
	objects   map[string]map[string][]byte // by resource, and namespace/name
	events    []event
	compacted int           // watches cannot start from this version or an earlier one
	changed   chan struct{} // closed by the next change
}

func newAPIServer(wrote func(kind string, grant []byte)) *apiServer {
	return &apiServer{wrote: wrote, objects: map[string]map[string][]byte{}, changed: make(chan struct{})}
}

// statusError is an error response of the API server.
type statusError struct {
	code   int
	reason metav1.StatusReason
	text   string
}

func (e *statusError) Error() string { return e.text }

func (e *statusError) status() []byte {
	return encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(e.code), Reason: e.reason, Message: e.text,
	})
}

func notFound(resource, key string) *statusError {
	return &statusError{404, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", resource, key)}
}

// encode encodes a value that cannot fail to encode.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// decode decodes an object that this package or the client encoded.
func decode(data []byte) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &o.Object); err != nil {
		panic(err)
	}
	return o
}

func keyOf(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// put creates or replaces an object, and sets its version.
func (a *apiServer) put(resource string, o metav1.Object) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.store(resource, o)
}

// The caller of store holds mu.
func (a *apiServer) store(resource string, o metav1.Object) []byte {
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	data, change := encode(o), "MODIFIED"
	if a.objects[resource] == nil {
		a.objects[resource] = map[string][]byte{}
	}
	if _, there := a.objects[resource][keyOf(o)]; !there {
		change = "ADDED"
	}
	a.objects[resource][keyOf(o)] = data
	a.happened(resource, change, data)
	return data
}

// The caller of happened holds mu.
func (a *apiServer) happened(resource, change string, object []byte) {
	a.events = append(a.events, event{a.version, time.Now(), resource, change, object})
	close(a.changed)
	a.changed = make(chan struct{})
	if resource == grants {
		a.wrote(change, object)
	}
}

// create rejects a name that exists.
func (a *apiServer) create(resource string, body []byte) ([]byte, error) {
	o := decode(body)
	if o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, there := a.objects[resource][keyOf(o)]; there {
		return nil, &statusError{409, metav1.StatusReasonAlreadyExists, fmt.Sprintf("%s %q already exists", resource, keyOf(o))}
	}
	k := kinds[resource]
	o.SetAPIVersion(k.apiVersion)
	o.SetKind(k.name)
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	return a.store(resource, o), nil
}

// patch merges body into an object (RFC 7386), and conditions by their type.
func (a *apiServer) patch(resource, key string, body []byte) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	data, there := a.objects[resource][key]
	if !there {
		return nil, notFound(resource, key)
	}
	o, change := decode(data), decode(body)
	if v := change.GetResourceVersion(); v != "" && v != o.GetResourceVersion() {
		return nil, &statusError{409, metav1.StatusReasonConflict, fmt.Sprintf("%s %q has changed", resource, key)}
	}
	if uid := change.GetUID(); uid != "" && uid != o.GetUID() {
		return nil, &statusError{409, metav1.StatusReasonConflict, fmt.Sprintf("%s %q is another one", resource, key)}
	}
	merge(o.Object, change.Object)
	return a.store(resource, o), nil
}

func merge(into, change map[string]any) {
	for name, v := range change {
		inner, is := v.(map[string]any)
		conditions, listed := v.([]any)
		switch {
		case name == "conditions" && listed:
			before, _ := into[name].([]any)
			into[name] = mergeConditions(before, conditions)
		case v == nil:
			delete(into, name)
		case is:
			if _, there := into[name].(map[string]any); !there {
				into[name] = map[string]any{}
			}
			merge(into[name].(map[string]any), inner) //nolint:forcetypeassert // it is one now
		default:
			into[name] = v
		}
	}
}

func mergeConditions(into, change []any) []any {
	of := func(c any) any { return c.(map[string]any)["type"] } //nolint:forcetypeassert // it is a condition
	for _, c := range change {
		i := slices.IndexFunc(into, func(other any) bool { return of(other) == of(c) })
		if i < 0 {
			into = append(into, c)
		} else {
			into[i] = c
		}
	}
	return into
}

func (a *apiServer) remove(resource, key string) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	data, there := a.objects[resource][key]
	if !there {
		return nil, notFound(resource, key)
	}
	delete(a.objects[resource], key)
	a.version++
	o := decode(data)
	o.SetResourceVersion(strconv.Itoa(a.version))
	data = encode(o)
	a.happened(resource, "DELETED", data)
	return data, nil
}

func (a *apiServer) get(resource, key string) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	data, there := a.objects[resource][key]
	if !there {
		return nil, notFound(resource, key)
	}
	return data, nil
}

// all returns the objects of a kind, sorted by name, and the version of the list.
func (a *apiServer) all(resource string) ([][]byte, int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all [][]byte
	for _, key := range slices.Sorted(maps.Keys(a.objects[resource])) {
		all = append(all, a.objects[resource][key])
	}
	return all, a.version
}

// compact drops all past events: a watch that starts from there has to list again.
func (a *apiServer) compact() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.compacted = a.version
}

// next returns the first event of a kind at or after an index of events, and the next index. ok is false without one.
func (a *apiServer) next(resource string, from int) (e event, next int, ok bool, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := from; i < len(a.events); i++ {
		if a.events[i].resource == resource {
			return a.events[i], i + 1, true, nil
		}
	}
	return event{}, len(a.events), false, a.changed
}

// place returns the index of the events after a version, and false if they were dropped.
func (a *apiServer) place(version int) (int, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if version < a.compacted {
		return 0, false
	}
	i, _ := slices.BinarySearchFunc(a.events, version+1, func(e event, v int) int { return e.version - v })
	return i, true
}

// path has the resource and object of a request.
type path struct{ resource, key string }

// parsePath reads /api/v1/… and /apis/group/version/…
func parsePath(text string) path {
	parts := strings.Split(strings.Trim(text, "/"), "/")
	parts = parts[min(len(parts), map[string]int{"api": 2, "apis": 3}[parts[0]]):]
	in := ""
	if len(parts) > 2 && parts[0] == "namespaces" {
		in, parts = parts[1], parts[2:]
	}
	p := path{resource: parts[0]}
	if len(parts) > 1 {
		p.key = in + "/" + parts[1]
	}
	return p
}
