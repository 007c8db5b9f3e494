package cluster

import (
	"errors"
	"testing"
)

// TestReason logs the forwarder's messages in each possible order.
func TestReason(t *testing.T) {
	gone, refused, ended := errors.New("write: broken pipe"), errors.New("error forwarding port 5681"), errors.New("lost connection to pod")
	tests := map[string]struct {
		log  func(r *reason)
		want string
	}{
		"nothing":                    {func(*reason) {}, "it was closed"},
		"the first":                  {func(r *reason) { r.Error(refused, "An error occurred forwarding"); r.set(ended) }, refused.Error()},
		"our own connection is gone": {func(r *reason) { r.Error(gone, callerGone); r.Error(refused, "An error occurred forwarding") }, refused.Error()},
		"and that is all":            {func(r *reason) { r.Error(gone, callerGone); r.set(ended) }, ended.Error()},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := &reason{}
			tc.log(r)
			if got := r.get().Error(); got != tc.want {
				t.Errorf("the reason is %q, want %q", got, tc.want)
			}
		})
	}
}
