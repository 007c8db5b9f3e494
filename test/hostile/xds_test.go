package hostile

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
)

func encoded(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err) // what tests make can be encoded
	}
	return data
}

// TestADS attacks ADS as members of the mesh, one attack after the other.
func TestADS(t *testing.T) {
	for _, a := range adsAttacks() {
		t.Run(a.name, func(t *testing.T) {
			x := newTarget(t)
			users := x.users()
			for n := range hostileMembers {
				x.hostile = append(x.hostile, x.newMember(fmt.Sprint("hostile-", n)).joined())
			}
			x.attack(t, users, onStreams(a.on))
			x.rest(t)
		})
	}
}
