package cluster

import (
	"slices"
	"testing"
)

// TestGates shows that each program gets the gates in its help.
func TestGates(t *testing.T) {
	const help = `      --feature-gates mapStringBool   A set of key=value pairs that describe feature gates. Options are:
                AllAlpha=true|false (ALPHA - default=false)
                kube:H2CContainerProbe=true|false (ALPHA - default=false)
      --help   for Old=true
`
	has, lacks := split([]string{"H2CContainerProbe=true", "Old=true", "AllAlpha=false", "H2C=true"}, help)
	if want := []string{"H2CContainerProbe=true", "AllAlpha=false"}; !slices.Equal(has, want) {
		t.Errorf("split() has %q, want %q", has, want)
	}
	if want := []string{"Old=true", "H2C=true"}; !slices.Equal(lacks, want) {
		t.Errorf("split() lacks %q, want %q", lacks, want)
	}
	g := gates{"/bin/kubelet": "--feature-gates=A=true"}
	kubelet := process{Command: []string{"/bin/kubelet", "--config=x"}}
	if got, want := g.on(kubelet).Command, []string{"/bin/kubelet", "--config=x", "--feature-gates=A=true"}; !slices.Equal(got, want) {
		t.Errorf("on() = %q, want %q", got, want)
	}
	proxy := process{Command: []string{"/bin/kube-proxy"}}
	if got := g.on(proxy).Command; !slices.Equal(got, proxy.Command) {
		t.Errorf("on() = %q for a program without gates", got)
	}
}
