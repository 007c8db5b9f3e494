package adsclient

import (
	"bytes"
	"encoding/binary"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
)

func edsCluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}}
}

// FuzzFrames splits messages into frames of any size.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{3, 0, 200}, []byte{1, 2, 7})
	f.Add([]byte{255, 255, 255, 1}, []byte{250, 90})
	f.Fuzz(func(t *testing.T, lengths, cuts []byte) {
		if len(lengths) > 50 {
			return
		}
		var want [][]byte
		var wire []byte
		for i, length := range lengths {
			message := bytes.Repeat([]byte{byte(i)}, int(length)*int(length)*2) // some are large
			want = append(want, message)
			wire = append(wire, 0)
			wire = binary.BigEndian.AppendUint32(wire, uint32(len(message)))
			wire = append(wire, message...)
		}
		l := &link{}
		n := 0
		for i := 0; len(wire) > 0; i++ {
			cut := len(wire)
			if i < len(cuts) {
				cut = min(cut, int(cuts[i])*int(cuts[i]))
			}
			l.data, wire = bytes.Clone(wire[:cut]), wire[cut:]
			for {
				got, err := l.take()
				if err != nil {
					t.Fatal(err)
				}
				if got == nil {
					break
				}
				if n == len(want) || !bytes.Equal(got, want[n]) {
					t.Fatalf("message %d is wrong", n)
				}
				n++
			}
		}
		if n != len(want) {
			t.Errorf("%d messages, want %d", n, len(want))
		}
	})
}
