package plugin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/sonde-mesh/sonde/cni/wire"
)

const previous = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"00:11:22:33:44:55","sandbox":"/run/netns/a"}],"ips":[{"interface":0,"address":"10.0.0.5/24"}],"dns":{}}`

func argsWith(config, args string) *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: "c1", Netns: "/run/netns/a", IfName: "eth0", StdinData: []byte(config), Args: args}
}

func TestPlugin(t *testing.T) {
	const pod = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u1"
	withPrevious := `{"cniVersion":"1.0.0","name":"net","type":"sonde-cni","socket":"/run/d.sock","prevResult":` + previous + `}`
	tests := map[string]struct {
		config, args string
		answer       wire.Answer
		askErr       error
		check        bool
		want         string // the request, "" for none
		out, note    string
		err          string
	}{
		"a pod":            {config: withPrevious, args: pod, want: "ADD c1 /run/netns/a shop/web-1 u1", out: `"address": "10.0.0.5/24"`},
		"a reason":         {config: withPrevious, args: pod, answer: wire.Answer{Error: "the kernel lacks nftables"}, want: "ADD c1 /run/netns/a shop/web-1 u1", err: "the kernel lacks nftables"},
		"daemon away":      {config: withPrevious, args: pod, askErr: wire.ErrAway, want: "ADD c1 /run/netns/a shop/web-1 u1", out: `"address": "10.0.0.5/24"`, note: "letting the pod start"},
		"no UID":           {config: withPrevious, args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1", want: "ADD c1 /run/netns/a shop/web-1 ", out: "10.0.0.5"},
		"no pod":           {config: withPrevious, out: "10.0.0.5"},
		"unreadable args":  {config: withPrevious, args: "K8S_POD_NAME", out: "10.0.0.5", note: "letting the pod start"},
		"alone":            {config: `{"cniVersion":"1.0.0","name":"net","type":"sonde-cni","socket":"/run/d.sock"}`, args: pod, out: `"cniVersion": "1.0.0"`},
		"no socket":        {config: `{"cniVersion":"1.0.0","name":"net","type":"sonde-cni"}`, args: pod, err: "has no socket"},
		"no JSON":          {config: `x`, err: "parse configuration"},
		"check":            {config: withPrevious, args: pod, check: true, want: "CHECK c1 /run/netns/a shop/web-1 u1"},
		"check, no daemon": {config: withPrevious, args: pod, askErr: wire.ErrAway, check: true, want: "CHECK c1 /run/netns/a shop/web-1 u1", note: "letting the pod start"},
		"check that fails": {config: withPrevious, args: pod, check: true, answer: wire.Answer{Error: "3 rules differ"}, want: "CHECK c1 /run/netns/a shop/web-1 u1", err: "3 rules differ"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var asked string
			var log bytes.Buffer
			funcs := Funcs(func(_ context.Context, socket string, r wire.Request) (wire.Answer, error) {
				asked = fmt.Sprintf("%s %s %s %s/%s %s", r.Verb, r.ContainerID, r.NetNS, r.Namespace, r.Pod, r.UID)
				if socket != "/run/d.sock" {
					t.Errorf("asked %s", socket)
				}
				return tc.answer, tc.askErr
			}, &log)
			call := funcs.Add
			if tc.check {
				call = funcs.Check
			}
			var err error
			out := stdout(t, func() { err = call(argsWith(tc.config, tc.args)) })
			if asked != tc.want {
				t.Errorf("asked %q, want %q", asked, tc.want)
			}
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if !strings.Contains(out, tc.out) || (out == "") != (tc.out == "") {
				t.Errorf("printed %s, want %s", out, tc.out)
			}
			if !strings.Contains(log.String(), tc.note) || (log.Len() == 0) != (tc.note == "") {
				t.Errorf("log %q, want %q", log.String(), tc.note)
			}
		})
	}
}

// stdout returns a function's output, where CNI has the result.
func stdout(t *testing.T, run func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdout
	os.Stdout = w
	run()
	os.Stdout = before
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
