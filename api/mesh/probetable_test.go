package mesh_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestParseProbeTable(t *testing.T) {
	tests := map[string]struct {
		data    string
		want    mesh.ProbeTable
		unknown []string
	}{
		"nothing": {data: ""},
		"space":   {data: " \n"},
		"null":    {data: "null"},
		"empty":   {data: "[]"},
		"seed form": {
			data: `[{"httpGet":{"path":"/healthz","port":6852}},{"grpc":{"port":3636,"service":"liveness"}},{"tcpSocket":{"port":6826}}]`,
			want: mesh.ProbeTable{
				{TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Path: "/healthz", Port: 6852, Scheme: "HTTP"}},
				{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: 3636, Service: "liveness"}},
				{TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: 6826}},
			},
		},
		"all keys": {
			data: `[{"id":"app-liveness","container":"app","type":"liveness","timeoutSeconds":2147483647,"tcpSocket":null,
				"httpGet":{"path":"\u0024(A) b","port":1,"scheme":"HTTPS","httpHeaders":[{"name":"Host","value":"x"},{"name":"A"},{"name":"A","value":"\t"}]}}]`,
			want: mesh.ProbeTable{{
				ID: "app-liveness", Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 2147483647,
				HTTPGet: &mesh.HTTPGetProbe{
					Path: "$(A) b", Port: 1, Scheme: "HTTPS",
					HTTPHeaders: []mesh.HTTPHeader{{Name: "Host", Value: "x"}, {Name: "A"}, {Name: "A", Value: "\t"}},
				},
			}},
		},
		"defaults for zeros": {
			data: `[{"type":"preStop","id":"1","timeoutSeconds":0,"httpGet":{"path":"","port":65535,"scheme":"","httpHeaders":null}}]`,
			want: mesh.ProbeTable{{ID: "1", Type: mesh.ProbePreStop, HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: 65535, Scheme: "HTTP"}}},
		},
		"guarded": {
			data: `[{"container":"app","type":"liveness","guarded":true,"failureThreshold":5,"periodSeconds":60,"tcpSocket":{"port":1}}]`,
			want: mesh.ProbeTable{{
				Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 1, Guarded: true, FailureThreshold: 5, PeriodSeconds: 60,
				TCPSocket: &mesh.TCPSocketProbe{Port: 1},
			}},
		},
		"guarded, with defaults": {
			data: `[{"container":"app","type":"liveness","guarded":true,"periodSeconds":0,"tcpSocket":{"port":1}},
				{"container":"app","type":"liveness","guarded":false,"grpc":{"port":1}}]`,
			want: mesh.ProbeTable{
				{
					Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 1, Guarded: true, FailureThreshold: 3, PeriodSeconds: 10,
					TCPSocket: &mesh.TCPSocketProbe{Port: 1},
				},
				{Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: 1}},
			},
		},
		"unknown keys, known ones in another case": {
			data: `[{"new":1,"TCPSocket":{},"tcpSocket":{"port":1,"host":"h"}},
				{"new":2,"httpGet":{"port":1,"httpHeaders":[{"name":"A","secret":1},{"name":"B","secret":2}]}}]`,
			want: mesh.ProbeTable{
				{TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: 1}},
				{TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{
					Path: "/", Port: 1, Scheme: "HTTP",
					HTTPHeaders: []mesh.HTTPHeader{{Name: "A"}, {Name: "B"}},
				}},
			},
			unknown: []string{"TCPSocket", "httpGet.httpHeaders.secret", "new", "tcpSocket.host"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, unknown, err := mesh.ParseProbeTable(tc.data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ParseProbeTable() (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.unknown, unknown); diff != "" {
				t.Errorf("unknown keys (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseProbeTableErrors(t *testing.T) {
	const named = `{"id":"i","container":"app","type":"liveness",`
	tests := map[string]struct {
		data string
		want []string // in the error
	}{
		"no JSON":       {`[{`, []string{"probes: must be JSON"}},
		"no list":       {`{"httpGet":{"port":1}}`, []string{"must be a list"}},
		"more behind":   {`[] []`, []string{"probes: must be JSON"}},
		"no object":     {`[5]`, []string{"probes[0]", "entry", `: 5: `, "must be an object"}},
		"null":          {`[null]`, []string{"probes[0]", "exactly one of httpGet, tcpSocket, grpc and exec"}},
		"no handler":    {`[` + named + `"timeoutSeconds":1}]`, []string{`probes[0] (id "i", container "app", type "liveness")`, "exactly one of"}},
		"two handlers":  {`[` + named + `"httpGet":{"port":1},"grpc":{"port":1}}]`, []string{`"httpGet, grpc"`, "exactly one of"}},
		"no command":    {`[` + named + `"exec":{}}]`, []string{"exec.command", "must begin with the name of a program"}},
		"NUL":           {`[` + named + `"exec":{"command":["a\u0000"]}}]`, []string{"exec.command", "must not contain NUL"}},
		"command text":  {`[` + named + `"exec":{"command":"/alive secret"}}]`, []string{"exec.command: must be a list of strings"}},
		"no container":  {`[{"container":"../app","exec":{"command":["a"]}}]`, []string{`container: "../app": must be the name of a container`}},
		"port of exec":  {`[` + named + `"virtualPort":9001,"exec":{"command":["a"]}}]`, []string{"virtualPort", "exec has no port of its own"}},
		"no port":       {`[` + named + `"tcpSocket":{}}]`, []string{"tcpSocket.port", `: 0: `, "from 1 to 65535"}},
		"port 65536":    {`[{"grpc":{"port":65536}}]`, []string{"grpc.port", `: 65536: `, "from 1 to 65535"}},
		"negative port": {`[{"httpGet":{"port":-1}}]`, []string{"httpGet.port", `: -1: `, "from 1 to 65535"}},
		"quoted port":   {`[` + named + `"httpGet":{"port":"8080"}}]`, []string{`container "app"`, "httpGet.port", "8080", "number"}},
		"huge port":     {`[{"httpGet":{"port":1e99}}]`, []string{"httpGet.port", "1e99"}},
		"half a port":   {`[{"httpGet":{"port":1.5}}]`, []string{"httpGet.port", "1.5"}},
		"no handler object": {
			`[{"httpGet":[]}]`, []string{"httpGet:", "must be an object"},
		},
		"scheme":            {`[{"httpGet":{"port":1,"scheme":"https"}}]`, []string{"httpGet.scheme", `"https"`, "HTTP or HTTPS"}},
		"type":              {`[{"type":"ready","grpc":{"port":1}}]`, []string{"type", `"ready"`, "readiness"}},
		"timeout":           {`[{"timeoutSeconds":-1,"grpc":{"port":1}}]`, []string{"timeoutSeconds", `: -1: `, "at least 1"}},
		"threshold":         {`[` + named + `"guarded":true,"failureThreshold":-1,"grpc":{"port":1}}]`, []string{`container "app"`, `failureThreshold: -1: must be at least 1`}},
		"period":            {`[` + named + `"guarded":true,"periodSeconds":-10,"grpc":{"port":1}}]`, []string{`periodSeconds: -10: must be at least 1`}},
		"half a period":     {`[` + named + `"guarded":true,"periodSeconds":0.5,"grpc":{"port":1}}]`, []string{"periodSeconds", "0.5", "number"}},
		"quoted threshold":  {`[` + named + `"failureThreshold":"3","grpc":{"port":1}}]`, []string{"failureThreshold", "number"}},
		"quoted guard":      {`[` + named + `"guarded":"true","grpc":{"port":1}}]`, []string{"guarded", "must be true or false"}},
		"guarded readiness": {`[{"container":"app","type":"readiness","guarded":true,"grpc":{"port":1}}]`, []string{`guarded: true: must not be there: only a probe of type liveness`}},
		"guarded hook":      {`[{"container":"app","type":"preStop","guarded":true,"httpGet":{"port":1}}]`, []string{`guarded: true:`, "only a probe of type liveness"}},
		"guarded nothing":   {`[{"type":"liveness","guarded":true,"grpc":{"port":1}}]`, []string{`guarded: true:`, "which is not named"}},
		"guarded port":      {`[` + named + `"guarded":true,"virtualPort":9001,"grpc":{"port":1}}]`, []string{`guarded: true:`, "a probe with a virtualPort is not guarded"}},
		"long timeout":      {`[{"timeoutSeconds":2147483648,"grpc":{"port":1}}]`, []string{"timeoutSeconds", "2147483648", "at most 2147483647"}},
		"hook by TCP":       {`[{"type":"postStart","id":"1","tcpSocket":{"port":1}}]`, []string{"tcpSocket", "a hook must have httpGet"}},
		"id":                {`[{"id":"a b","grpc":{"port":1}}]`, []string{"id", `"a b"`, "visible ASCII"}},
		"long id":           {`[{"id":"` + strings.Repeat("x", 257) + `","grpc":{"port":1}}]`, []string{"at most 256"}},
		"same id":           {`[{"id":"a","grpc":{"port":1}},{"id":"a","grpc":{"port":2}}]`, []string{"probes[1]", `id: "a"`, "probes[0] has it too"}},
		"virtual port":      {`[{"virtualPort":70000,"grpc":{"port":1}}]`, []string{"virtualPort", `: 70000: `, "from 1 to 65535"}},
		"HTTP's own":        {`[{"virtualPort":9001,"httpGet":{"port":1}}]`, []string{"virtualPort", `: 9001: `, "httpGet has no port of its own"}},
		"itself":            {`[{"virtualPort":1,"grpc":{"port":1}}]`, []string{"virtualPort", `: 1: `, "must not be the application's port"}},
		"same port":         {`[{"virtualPort":9,"grpc":{"port":1}},{"virtualPort":9,"tcpSocket":{"port":2}}]`, []string{"probes[1]", `virtualPort: 9:`, "probes[0] has it too"}},
		"headers":           {`[{"httpGet":{"port":1,"httpHeaders":{}}}]`, []string{"httpGet.httpHeaders", "must be a list"}},
		"a header":          {`[{"httpGet":{"port":1,"httpHeaders":["secret"]}}]`, []string{"httpGet.httpHeaders[0]", "must be an object"}},
		"header value":      {`[{"httpGet":{"port":1,"httpHeaders":[{"name":"A","value":["secret"]}]}}]`, []string{"httpGet.httpHeaders[0].value", "must be a string"}},
		"all of them":       {`[{"grpc":{"port":0}},{"grpc":{"port":1}},{"tcpSocket":{"port":0}}]`, []string{"probes[0]", "probes[2]"}},
		"hidden values":     {`[{"path":1,"grpc":{"port":[1]}}]`, []string{"grpc.port", "[1]"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			table, _, err := mesh.ParseProbeTable(tc.data)
			if err == nil {
				t.Fatalf("ParseProbeTable() = %v, want an error", table)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q shows a header's value", err)
			}
		})
	}
}

func TestEncodeProbeTable(t *testing.T) {
	table := mesh.ProbeTable{
		{ID: "1", TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Path: `/$(A)/$$/\$<&>`, Port: 1, Scheme: "HTTP", HTTPHeaders: []mesh.HTTPHeader{{Name: "A", Value: "$"}}}},
		{ID: "2", TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: 1, Service: "ä $\n"}},
	}
	data, err := table.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(data, "$") {
		t.Errorf("Encode() = %s: the kubelet would expand it", data)
	}
	got, unknown, err := mesh.ParseProbeTable(data)
	if err != nil || unknown != nil {
		t.Fatal(err, unknown)
	}
	if diff := cmp.Diff(table, got); diff != "" {
		t.Errorf("ParseProbeTable(Encode()) (-want +got):\n%s", diff)
	}
	for _, empty := range []mesh.ProbeTable{nil, {}} {
		if data, err := empty.Encode(); data != "[]" || err != nil {
			t.Errorf("Encode() of an empty table = %q, %v", data, err)
		}
	}
}

func TestEncodeProbeTableSize(t *testing.T) {
	encode := func(pathSize int) (string, error) {
		return mesh.ProbeTable{{HTTPGet: &mesh.HTTPGetProbe{Path: strings.Repeat("x", pathSize), Port: 1}}}.Encode()
	}
	empty, err := encode(1)
	if err != nil {
		t.Fatal(err)
	}
	most := mesh.MaxProbeTable - len("KUMA_DATAPLANE_PROBES=") - len(empty) + 1
	if data, err := encode(most); err != nil || len(data)+len("KUMA_DATAPLANE_PROBES=") != 131071 {
		t.Errorf("Encode() of the largest table: %d bytes, %v", len(data), err)
	}
	if _, err := encode(most + 1); err == nil || !strings.Contains(err.Error(), "131072") {
		t.Errorf("Encode() of a table that is too large: %v, want an error with its size", err)
	}
}

func FuzzParseProbeTable(f *testing.F) {
	f.Add(`[{"id":"a","container":"c","type":"liveness","timeoutSeconds":1,"httpGet":{"path":"/","port":1,"httpHeaders":[{"name":"A","value":"b"}]}}]`)
	f.Add(`[{"grpc":{"port":3636,"service":"liveness"}},{"tcpSocket":{"port":6826}}]`)
	f.Add(`[null,5,{"httpGet":[]}]`)
	f.Add(`[{"id":"a","container":"c","type":"liveness","guarded":true,"failureThreshold":3,"periodSeconds":10,"grpc":{"port":1}}]`)
	f.Fuzz(func(t *testing.T, data string) {
		table, _, err := mesh.ParseProbeTable(data)
		if err != nil {
			return
		}
		for _, p := range table {
			if p.Port() < 1 || p.Port() > 65535 || p.TimeoutSeconds < 1 || p.Guarded && (p.FailureThreshold < 1 || p.PeriodSeconds < 1) {
				t.Errorf("ParseProbeTable(%q) lets %+v pass", data, p)
			}
			p.VirtualPath()
		}
		encoded, err := table.Encode()
		if err != nil {
			return // too large
		}
		again, _, err := mesh.ParseProbeTable(encoded)
		if err != nil || (len(table) > 0 && !cmp.Equal(table, again)) {
			t.Errorf("a table changes by Encode and ParseProbeTable: %v, %v", cmp.Diff(table, again), err)
		}
	})
}
