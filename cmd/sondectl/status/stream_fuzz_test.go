package status

import (
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// FuzzStream takes over any messages of a control plane, of any length each, and judges what they say.
func FuzzStream(f *testing.F) {
	var seed []byte
	for _, m := range []*adminv1.WatchResponse{
		{Section: adminv1.WatchRequest_MESHES, Rest: true, Names: []string{"default"}, List: &adminv1.WatchResponse_Meshes{
			Meshes: &adminv1.ListMeshesResponse{Meshes: []*adminv1.Mesh{{Object: []byte(`{"name":"default","spec":{}}`)}}},
		}},
		{Section: adminv1.WatchRequest_DATAPLANES, Names: []string{"default/web-1"}, List: &adminv1.WatchResponse_Dataplanes{
			Dataplanes: &adminv1.ListDataplanesResponse{Dataplanes: []*adminv1.Dataplane{{Object: []byte(`{"type":"Dataplane","mesh":"default","name":"web-1","spec":{}}`)}}},
		}},
		{Section: adminv1.WatchRequest_PROXIES, Names: []string{"default/web-1"}, List: &adminv1.WatchResponse_Proxies{
			Proxies: &adminv1.ListProxiesResponse{Proxies: []*adminv1.Proxy{{Mesh: "default", Name: "web-1", Verdicts: &adminv1.Verdicts{}}}},
		}},
		{Section: adminv1.WatchRequest_RESTARTS, Error: &adminv1.WatchError{Code: 9}},
		{Section: adminv1.WatchRequest_PROXIES, Names: []string{"more", "names"}, Removed: []string{"default/web-1"}},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		seed = protowire.AppendBytes(seed, data)
	}
	f.Add(seed)
	f.Fuzz(func(_ *testing.T, data []byte) {
		s := newStream()
		for len(data) > 0 {
			one, n := protowire.ConsumeBytes(data)
			if n < 0 {
				return
			}
			data = data[n:]
			m := &adminv1.WatchResponse{}
			if proto.Unmarshal(one, m) != nil || s.take(m) != nil {
				return
			}
			if r := s.reading(time.Unix(0, 0)); r.Err() == nil {
				Judge(r.Facts)
			}
		}
	})
}
