package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/secret"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiServer serves Secrets of one namespace, as far as a Store uses the API.
type apiServer struct {
	t *testing.T

	mu       sync.Mutex
	version  int
	secrets  map[string]*corev1.Secret
	watchers map[chan metav1.WatchEvent]bool
}

func newAPIServer(t *testing.T) (*apiServer, func() *Store) {
	t.Helper()
	s := &apiServer{t: t, secrets: map[string]*corev1.Secret{}, watchers: map[chan metav1.WatchEvent]bool{}}
	dial := virtual.ServeHTTP(t, s, nil)
	return s, func() *Store {
		config := rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}
		client, err := clientv1.NewForConfig(&rest.Config{Host: "http://api", Dial: dial, QPS: -1, ContentConfig: config})
		if err != nil {
			t.Fatal(err)
		}
		return New(client.Secrets("sonde-system"))
	}
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/sonde-system/secrets"), "/")
	if name == "" && r.Method == http.MethodGet {
		s.collection(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var sent corev1.Secret
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			s.t.Error(err)
		}
	}
	kept := s.secrets[name]
	switch {
	case r.Method == http.MethodPost && s.secrets[sent.Name] != nil:
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	case r.Method == http.MethodPost:
		answer(w, http.StatusCreated, s.put("ADDED", &sent))
	case kept == nil:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodGet:
		answer(w, http.StatusOK, kept)
	case r.Method == http.MethodPut && kept.ResourceVersion != sent.ResourceVersion:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
	case r.Method == http.MethodPut:
		answer(w, http.StatusOK, s.put("MODIFIED", &sent))
	default:
		s.t.Errorf("%s %s: the Role does not allow it", r.Method, r.URL)
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	}
}

// collection lists or watches the Secrets of the control plane.
func (s *apiServer) collection(w http.ResponseWriter, r *http.Request) {
	if got := r.URL.Query().Get("labelSelector"); got != "app.kubernetes.io/managed-by=sonde" {
		s.t.Errorf("labelSelector = %q", got)
	}
	if r.URL.Query().Get("watch") != "" {
		s.watch(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := corev1.SecretList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	all.APIVersion, all.Kind = "v1", "SecretList"
	for _, one := range s.secrets {
		if one.Labels["app.kubernetes.io/managed-by"] == "sonde" {
			all.Items = append(all.Items, *one)
		}
	}
	answer(w, http.StatusOK, all)
}

// put stores a Secret; the caller holds mu.
func (s *apiServer) put(event string, one *corev1.Secret) *corev1.Secret {
	s.version++
	one.APIVersion, one.Kind, one.Namespace, one.ResourceVersion = "v1", "Secret", "sonde-system", strconv.Itoa(s.version)
	s.secrets[one.Name] = one
	s.notify(event, one)
	return one
}

func (s *apiServer) notify(event string, one *corev1.Secret) {
	for w := range s.watchers {
		w <- metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Object: one.DeepCopy()}}
	}
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("sendInitialEvents") != "" { // like an API server without WatchList
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	events := make(chan metav1.WatchEvent, 100)
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	s.mu.Lock()
	for _, one := range s.secrets {
		if version, _ := strconv.Atoi(one.ResourceVersion); version > from { // changes since the client's list
			events <- metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Object: one.DeepCopy()}}
		}
	}
	s.watchers[events] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, events)
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			_ = json.NewEncoder(w).Encode(e)
			w.(http.Flusher).Flush()
		}
	}
}

func answer(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	status := metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason)}
	status.APIVersion, status.Kind = "v1", "Status"
	answer(w, code, status)
}

func TestStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, open := newAPIServer(t)
		a, b := open(), open()
		ctx := t.Context()
		const name = "meshes/default/ca.json"
		first, err := a.Create(ctx, name, []byte("of a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Create(ctx, name, []byte("of b")); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Create() of another replica = %v, want fs.ErrExist", err)
		}
		data, version, err := b.Read(ctx, name)
		if err != nil || string(data) != "of a" || version != first {
			t.Errorf("Read() = %q, %q, %v, want the first replica's data, version %q", data, version, err, first)
		}
		if _, err := b.Update(ctx, name, []byte("by b"), version); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Update(ctx, name, []byte("by a"), first); !errors.Is(err, secret.ErrConflict) {
			t.Errorf("Update() of an old version = %v, want secret.ErrConflict", err)
		}
		if _, err := a.Create(ctx, "admin-token", []byte("token")); err != nil {
			t.Fatal(err)
		}
		if names, err := a.List(ctx, "meshes"); err != nil || !slices.Equal(names, []string{"default"}) {
			t.Errorf("List() = %v, %v, want default", names, err)
		}
		server.mu.Lock()
		defer server.mu.Unlock()
		kept := server.secrets["sonde-ca-default"]
		if kept == nil || kept.Type != corev1.SecretTypeOpaque || string(kept.Data["ca.json"]) != "by b" || server.secrets["sonde-admin-token"] == nil {
			t.Errorf("the API server has %v", server.secrets)
		}
	})
}

func TestNothingIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, open := newAPIServer(t)
		s := open()
		if _, _, err := s.Read(t.Context(), "admin-token"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Read() of a missing Secret = %v, want fs.ErrNotExist", err)
		}
		if _, err := s.Update(t.Context(), "admin-token", nil, "1"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Update() of a missing Secret = %v, want fs.ErrNotExist", err)
		}
	})
}

func TestBadSecretsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, open := newAPIServer(t)
		s := open()
		ctx := t.Context()
		for _, name := range []string{"", "ca-default", "meshes/default/proxies/web.json", "meshes/default", "a/b", "Admin"} {
			if _, err := s.Create(ctx, name, nil); !errors.Is(err, errName) {
				t.Errorf("Create(%q) = %v, want errName", name, err)
			}
		}
		if _, err := s.Create(ctx, "admin-token", make([]byte, maxSize+1)); err == nil || !strings.Contains(err.Error(), "at most") {
			t.Errorf("Create() of too much data = %v", err)
		}
		server.mu.Lock()
		server.put("ADDED", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sonde-admin-token"}, Data: map[string][]byte{"token": []byte("hidden")}})
		server.put("ADDED", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sonde-large"}, Data: map[string][]byte{"large": make([]byte, maxSize+1)}})
		server.mu.Unlock()
		for name, want := range map[string]string{"admin-token": `no key "admin-token"`, "large": "at most"} {
			if _, _, err := s.Read(ctx, name); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("Read(%q) = %v, want an error that says %q", name, err, want)
			}
		}
	})
}

func TestNames(t *testing.T) {
	names := map[string]object{
		"meshes/default/ca.json": {"sonde-ca-default", "ca.json"},
		"serving-ca.crt":         {"sonde-serving-ca.crt", "serving-ca.crt"},
		"serving-ca.json":        {"sonde-serving-ca.json", "serving-ca.json"},
		"dataplane-token.key":    {"sonde-dataplane-token.key", "dataplane-token.key"},
	}
	for name, want := range names {
		got, err := objectOf(name)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(object{})); diff != "" || err != nil {
			t.Errorf("objectOf(%q): %v %s", name, err, diff)
		}
		if back, ok := nameOf(want.name); !ok || back != name {
			t.Errorf("nameOf(%q) = %q, %v, want %q", want.name, back, ok, name)
		}
	}
	if name, ok := nameOf("kube-root-ca"); ok {
		t.Errorf("nameOf() of another Secret = %q", name)
	}
}

// Two control planes share the CA of a mesh, and a rotation that one of them begins.
func TestReplicasShareCAs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, open := newAPIServer(t)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		start := func() *identity.Authority {
			a, err := identity.New(ctx, identity.Options{Secrets: open(), Proxies: identity.NoProxies})
			if err != nil {
				t.Fatal(err)
			}
			running.Go(func() {
				if err := a.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			return a
		}
		a, b := start(), start()
		var made sync.WaitGroup
		for _, one := range []*identity.Authority{a, b} {
			made.Go(func() {
				if err := one.Ensure(ctx, "default", 0); err != nil {
					t.Error(err)
				}
			})
		}
		made.Wait()
		if x, y := bundle(t, a), bundle(t, b); x != y || x == "" {
			t.Fatalf("the replicas have the bundles %q and %q", x, y)
		}
		if err := a.StartRotation(ctx, "default", 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if x, y := bundle(t, a), bundle(t, b); x != y {
			t.Errorf("the replicas have the bundles %q and %q after a rotation of one has begun", x, y)
		}
		if err := a.Ensure(ctx, "other", 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !slices.Contains(b.Meshes(), "other") {
			t.Error("the other replica lacks the new CA")
		}
	})
}

func bundle(t *testing.T, a *identity.Authority) string {
	t.Helper()
	due, err := a.Due(identity.Peer{Subject: identity.Subject{Mesh: "default", Dataplane: "web-1"}})
	if err != nil {
		t.Fatal(err)
	}
	return due.Bundle.ID
}
