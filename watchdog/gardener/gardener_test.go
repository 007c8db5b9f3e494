package gardener

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// shootOf returns a created Shoot with a worker, as written by gardenlet, changed by a merge patch.
func shootOf(t *testing.T, patch string) []byte {
	t.Helper()
	const created = `{"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot",
		"metadata": {"name": "b", "namespace": "garden-a"},
		"spec": {"hibernation": {"enabled": false, "schedules": [{"start": "30 19 * * *"}]}, "kubernetes": {"version": "1.34.1"}, "provider": {"type": "local", "workers": [{"name": "w", "minimum": 1}]}},
		"status": {"hibernated": false, "technicalID": "shoot--a--b", "lastOperation": {"type": "Create", "state": "Succeeded", "progress": 100}}}`
	var to, from map[string]any
	for text, into := range map[string]*map[string]any{created: &to, patch: &from} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	merge(to, from)
	raw, err := json.Marshal(to)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func merge(to, from map[string]any) {
	for key, value := range from {
		deep, ok := value.(map[string]any)
		if inner, has := to[key].(map[string]any); ok && has {
			merge(inner, deep)
			continue
		}
		to[key] = value
	}
}

// The Dependency Watchdog's own cases of starting and stopping a probe, and cases between them.
func TestHalt(t *testing.T) {
	tests := map[string]struct {
		patch string
		want  Halt
	}{
		"created":                              {`{}`, ""},
		"is being created":                     {`{"status": {"lastOperation": {"state": "Processing"}}}`, Creating},
		"creation is pending":                  {`{"status": {"lastOperation": {"state": "Pending"}}}`, Creating},
		"creation has an error":                {`{"status": {"lastOperation": {"state": "Error"}}}`, Creating},
		"creation was aborted":                 {`{"status": {"lastOperation": {"state": "Aborted"}}}`, Creating},
		"creation has failed":                  {`{"status": {"lastOperation": {"state": "Failed"}}}`, Creating},
		"new":                                  {`{"status": null}`, Creating},
		"is being reconciled":                  {`{"status": {"lastOperation": {"type": "Reconcile", "state": "Processing"}}}`, ""},
		"reconciliation has failed":            {`{"status": {"lastOperation": {"type": "Reconcile", "state": "Failed"}}}`, ""},
		"reconciliation, and no state":         {`{"status": {"lastOperation": {"type": "Reconcile", "state": ""}}}`, ""},
		"is to hibernate":                      {`{"spec": {"hibernation": {"enabled": true}}, "status": {"lastOperation": {"type": "Reconcile", "state": "Processing"}}}`, Hibernated},
		"hibernated":                           {`{"spec": {"hibernation": {"enabled": true}}, "status": {"hibernated": true, "lastOperation": {"type": "Reconcile"}}}`, Hibernated},
		"wakes up":                             {`{"status": {"hibernated": true, "lastOperation": {"type": "Reconcile", "state": "Processing"}}}`, Waking},
		"has no hibernation":                   {`{"spec": {"hibernation": null}}`, ""},
		"has no hibernation.enabled":           {`{"spec": {"hibernation": {"enabled": null}}}`, ""},
		"is migrated":                          {`{"status": {"lastOperation": {"type": "Migrate", "state": ""}}}`, Migrating},
		"was migrated":                         {`{"status": {"lastOperation": {"type": "Migrate", "state": "Succeeded"}}}`, Migrating},
		"is migrated while it runs":            {`{"status": {"lastOperation": {"type": "LiveMigrate", "state": "Processing"}}}`, Migrating},
		"is being restored":                    {`{"status": {"lastOperation": {"type": "Restore", "state": "Processing"}}}`, Migrating},
		"restoring has an error":               {`{"status": {"lastOperation": {"type": "Restore", "state": "Error"}}}`, Migrating},
		"restored":                             {`{"status": {"lastOperation": {"type": "Restore", "state": "Succeeded"}}}`, ""},
		"restored, hibernated":                 {`{"status": {"hibernated": true, "lastOperation": {"type": "Restore", "state": "Succeeded"}}}`, Waking},
		"has no workers":                       {`{"spec": {"provider": {"workers": []}}}`, Workerless},
		"has never had workers":                {`{"spec": {"provider": {"workers": null}}}`, Workerless},
		"is being deleted":                     {`{"metadata": {"deletionTimestamp": "2022-05-05T08:34:05Z"}}`, Deleted},
		"is being deleted, hibernated":         {`{"metadata": {"deletionTimestamp": "2022-05-05T08:34:05Z"}, "spec": {"hibernation": {"enabled": true}}}`, Deleted},
		"its deletion has begun":               {`{"status": {"lastOperation": {"type": "Delete", "state": "Processing"}}}`, Deleted},
		"fields of a later Gardener are there": {`{"spec": {"later": [1]}, "status": {"lastOperation": {"later": true}}}`, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := &Cluster{ObjectMeta: metav1.ObjectMeta{Name: "shoot--a--b", UID: "u"}, Spec: ClusterSpec{Shoot: runtime.RawExtension{Raw: shootOf(t, tc.patch)}}}
			got, kept := RecordOf(c)
			if d := cmp.Diff(Record{UID: "u", Halt: tc.want}, got); d != "" || !kept {
				t.Errorf("%s, kept: %t", d, kept)
			}
			if tc.want != "" && tc.want.Text() == "" {
				t.Errorf("%s has no text", tc.want)
			}
		})
	}
}

func TestClusterBeingDeleted(t *testing.T) {
	now := metav1.Now()
	c := &Cluster{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}, Spec: ClusterSpec{Shoot: runtime.RawExtension{Raw: shootOf(t, `{}`)}}}
	if r, kept := RecordOf(c); r.Halt != Deleted || !kept {
		t.Errorf("RecordOf() = %+v, %t", r, kept)
	}
}

func TestMonitorGrace(t *testing.T) {
	for patch, want := range map[string]time.Duration{
		`{}`: 0,
		`{"spec": {"kubernetes": {"kubeControllerManager": {}}}}`:                                0,
		`{"spec": {"kubernetes": {"kubeControllerManager": {"nodeMonitorGracePeriod": "80s"}}}}`: 80 * time.Second,
	} {
		r, _ := RecordOf(&Cluster{Spec: ClusterSpec{Shoot: runtime.RawExtension{Raw: shootOf(t, patch)}}})
		if r.MonitorGrace != want || r.Halt != "" {
			t.Errorf("%s: %+v, want %s", patch, r, want)
		}
	}
}

// An unreadable shoot is not watched, with a reason.
func TestUnreadable(t *testing.T) {
	tests := map[string]struct{ raw, want string }{
		"nothing":        {``, "spec.shoot: must be a Shoot"},
		"null":           {`null`, "spec.shoot: must be a Shoot"},
		"a text":         {`"shoot"`, `spec.shoot: "shoot": must be an object`},
		"a number":       {`{"apiVersion": 8}`, `spec.shoot.apiVersion: 8: must be a text`},
		"a Seed":         {`{"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Seed"}`, `spec.shoot.kind: "Seed": must be Shoot`},
		"no kind":        {`{"apiVersion": "core.gardener.cloud/v1beta1"}`, "spec.shoot.kind: must be Shoot"},
		"another group":  {`{"apiVersion": "apps/v1", "kind": "Shoot"}`, `spec.shoot.apiVersion: "apps/v1": must be core.gardener.cloud/v1beta1`},
		"hibernation":    {string(shootOf(t, `{"spec": {"hibernation": {"enabled": "yes"}}}`)), `spec.shoot.spec.hibernation.enabled: "yes": must be`},
		"workers":        {string(shootOf(t, `{"spec": {"provider": {"workers": 3}}}`)), `spec.shoot.spec.provider.workers: 3: must be a list`},
		"deletion":       {string(shootOf(t, `{"metadata": {"deletionTimestamp": "soon"}}`)), "spec.shoot.metadata.deletionTimestamp"},
		"an operation":   {string(shootOf(t, `{"status": {"lastOperation": {"type": "Dance"}}}`)), `spec.shoot.status.lastOperation.type: "Dance": must be one of Create, `},
		"a grace period": {string(shootOf(t, `{"spec": {"kubernetes": {"kubeControllerManager": {"nodeMonitorGracePeriod": "-1s"}}}}`)), `nodeMonitorGracePeriod: "-1s": must be more than 0s`},
		"a long text":    {`{"apiVersion": "` + strings.Repeat("x", 1<<16) + `"}`, "must be core.gardener.cloud/v1beta1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, kept := RecordOf(&Cluster{Spec: ClusterSpec{Shoot: runtime.RawExtension{Raw: []byte(tc.raw)}}})
			if r.Halt != Unreadable || !strings.Contains(r.Detail, tc.want) || len(r.Detail) > maxDetail+10 || !kept {
				t.Errorf("RecordOf() = %+v, want %q", r, tc.want)
			}
		})
	}
}

// Reading an arbitrary shoot never panics, and an unreadable one has a reason.
func FuzzRecordOf(f *testing.F) {
	f.Add([]byte(`{"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", "spec": {"provider": {"workers": [{}]}}, "status": {"lastOperation": {"type": "Reconcile"}}}`))
	f.Add([]byte(`{"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", "spec": {"kubernetes": {"kubeControllerManager": {"nodeMonitorGracePeriod": "1s"}}}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, _ := RecordOf(&Cluster{Spec: ClusterSpec{Shoot: runtime.RawExtension{Raw: raw}}})
		if (r.Detail != "") != (r.Halt == Unreadable) {
			t.Errorf("RecordOf() = %+v", r)
		}
	})
}

func TestCopiesAreDeep(t *testing.T) {
	l := &ClusterList{Items: []Cluster{{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"x": "y"}}, Spec: ClusterSpec{Shoot: runtime.RawExtension{Raw: []byte("{}")}}}}}
	made, ok := l.DeepCopyObject().(*ClusterList)
	if !ok || cmp.Diff(l, made) != "" {
		t.Fatalf("DeepCopyObject() = %+v", made)
	}
	made.Items[0].Labels["x"], made.Items[0].Spec.Shoot.Raw[0] = "z", '['
	if l.Items[0].Labels["x"] != "y" || l.Items[0].Spec.Shoot.Raw[0] != '{' {
		t.Error("a copy shares what it points to")
	}
}
