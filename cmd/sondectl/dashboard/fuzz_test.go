package dashboard

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// hostile are texts that are to be shown as they are.
var hostile = []string{
	`<img src=x onerror=alert(1)></td></script><script>alert(2)</script>`, `"><svg/onload=alert(3)>`, "\u202Egnp.exe\u2066", "\u0000\u001b[31m\u2028\u2029", `\",]}{[`, "👩‍👩‍👧‍👦🏴‍☠️",
	"\xff\xfe\xc3\x28", strings.Repeat("Ω", 10<<10), "{{.}}", "",
}

// hostileAPI is a mesh with a pod and a machine that have a text wherever others choose it.
func hostileAPI(text string) *fakeAPI {
	valid := strings.ToValidUTF8(text, "\ufffd") // gRPC accepts no other text
	a := podAPI(adminv1.Endpoint_NOT_READY, verdict(valid, "readiness", "failure", valid), verdict("app", valid, valid, valid))
	a.add("vm-1", "vm", tcpProbe, notReady(valid))
	a.dataplanes[0].PodState = &adminv1.PodState{Created: timestamppb.New(at), Unfailing: []*adminv1.UnfailingProbe{{Container: valid, Probe: "liveness", Reason: valid}}}
	name, err := json.Marshal(text)
	if err != nil {
		panic(err) // it is a string
	}
	a.dataplanes[1].Object = bytes.Replace(a.dataplanes[1].Object, []byte(`"vm-1"`), name, 1)
	a.proxies[1].Name, a.proxies[1].Drain, a.proxies[1].Agent.Version, a.proxies[1].Agent.EnvoyDown = valid, valid, valid, valid
	a.proxies[1].Streams[0].Types[0].Nacks = []*adminv1.Nack{{Resource: valid, Reason: valid}}
	a.services[1].Name, a.services[1].Reasons, a.services[1].Endpoints[0].Reason = valid, []string{valid}, valid
	a.restarts = &adminv1.ListRestartsResponse{Unhelpful: []string{valid}, Restarts: []*adminv1.Restart{{Namespace: valid, Pod: valid, Container: valid, Workload: valid, Why: valid, Failure: valid}}}
	a.health.Checks[0] = &adminv1.HealthCheck{Name: valid, Reason: valid, Status: adminv1.HealthCheck_FAILED}
	return a
}

// answers are the control plane's answers as they are sent.
type answers struct{ dataplanes, services, proxies, restarts, health []byte }

func (a *fakeAPI) encode(t testing.TB) answers {
	encode := func(m proto.Message) []byte {
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	return answers{
		encode(&adminv1.ListDataplanesResponse{Dataplanes: a.dataplanes}), encode(&adminv1.ListServicesResponse{Services: a.services}),
		encode(&adminv1.ListProxiesResponse{Proxies: a.proxies}), encode(a.restarts), encode(a.health),
	}
}

// decode returns the API that answers so, and false if gRPC would refuse it.
func (a answers) decode() (*fakeAPI, bool) {
	dataplanes, services, proxies := &adminv1.ListDataplanesResponse{}, &adminv1.ListServicesResponse{}, &adminv1.ListProxiesResponse{}
	api := &fakeAPI{restarts: &adminv1.ListRestartsResponse{}, health: &adminv1.Health{}, errs: map[string]error{}}
	for _, part := range []struct {
		body []byte
		into proto.Message
	}{{a.dataplanes, dataplanes}, {a.services, services}, {a.proxies, proxies}, {a.restarts, api.restarts}, {a.health, api.health}} {
		if proto.Unmarshal(part.body, part.into) != nil {
			return nil, false
		}
	}
	api.dataplanes, api.services, api.proxies = dataplanes.GetDataplanes(), services.GetServices(), proxies.GetProxies()
	return api, true
}

// FuzzAnswers decodes answers of a control plane into the sections of the page. Whatever an answer contains is text:
// each section is valid and bounded, patches lead to the same section, and the snapshot has only its own markup.
func FuzzAnswers(f *testing.F) {
	for _, text := range hostile {
		a := hostileAPI(text).encode(f)
		api, ok := a.decode()
		if !ok {
			f.Fatalf("the seed with %q cannot be decoded", text)
		}
		if _, s := newTestHandler(api); s.once(f.Context()) != nil {
			f.Fatalf("the seed with %q cannot be read", text)
		}
		f.Add(a.dataplanes, a.services, a.proxies, a.restarts, a.health)
	}
	f.Fuzz(func(t *testing.T, dataplanes, services, proxies, restarts, health []byte) {
		api, ok := answers{dataplanes, services, proxies, restarts, health}.decode()
		if !ok {
			return // gRPC refuses it
		}
		h, s := newTestHandler(api)
		if s.once(t.Context()) != nil {
			return // a Dataplane cannot be decoded
		}
		sent := len(dataplanes) + len(services) + len(proxies) + len(restarts) + len(health)
		for _, p := range parts {
			_, data, _ := s.section(p.name)
			if !json.Valid(data) || !utf8.Valid(data) {
				t.Fatalf("%s is %q", p.name, data)
			}
			if most := 20*(sent+maxText) + 4000; len(data) > most {
				t.Errorf("%s has %d bytes of %d sent, must have at most %d", p.name, len(data), sent, most)
			}
			samePatch(t, h, p.name, data)
		}
		var page bytes.Buffer
		if err := s.snapshot(&page); err != nil {
			t.Fatal(err)
		}
		for _, markup := range []string{"<script", "<img", "onerror=alert(1)>", "<svg/onload", "javascript:"} {
			if strings.Contains(page.String(), markup) {
				t.Errorf("the snapshot has %s", markup)
			}
		}
	})
}

// samePatch checks that a section is the same if a page makes it of a patch of itself.
func samePatch(t *testing.T, h *handler, name string, data json.RawMessage) {
	t.Helper()
	h.since.patch(name, "", "before", data)
	patch := h.since.patch(name, "before", "after", data)
	var whole struct{ Rows []json.RawMessage }
	if err := json.Unmarshal(data, &whole); err != nil {
		t.Fatal(err)
	}
	if patch == nil {
		if bytes.HasPrefix(data, []byte(rowsFirst)) {
			t.Errorf("%s has no patch", name)
		}
		return
	}
	var runs struct{ Rows [][2]int }
	if err := json.Unmarshal(patch, &runs); err != nil {
		t.Fatalf("the patch of %s is %s: %v", name, patch, err)
	}
	var rows []json.RawMessage
	for _, run := range runs.Rows {
		rows = append(rows, whole.Rows[run[0]:run[0]+run[1]]...)
	}
	if a, b := bytes.Join(toBytes(rows), nil), bytes.Join(toBytes(whole.Rows), nil); !bytes.Equal(a, b) {
		t.Errorf("the patch of %s is %s", name, patch)
	}
}

func toBytes(rows []json.RawMessage) (all [][]byte) {
	for _, row := range rows {
		all = append(all, row)
	}
	return all
}
