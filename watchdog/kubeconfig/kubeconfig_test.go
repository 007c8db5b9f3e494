package kubeconfig

import (
	"strings"
	"testing"
)

// valid is a kubeconfig with a server and a user's credentials.
func valid(cluster, user string) string {
	return `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {` + cluster + `}}]
users: [{name: u, user: {` + user + `}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`
}

const server = "server: 'https://kube-apiserver'"

func TestParse(t *testing.T) {
	tests := map[string]struct {
		server   string
		external bool
	}{
		"a name":                {"https://kube-apiserver", false},
		"of a namespace":        {"https://kube-apiserver.shoot--a--b:443", false},
		"of a Service":          {"https://kube-apiserver.shoot--a--b.svc", false},
		"of the cluster":        {"https://kube-apiserver.a.svc.cluster.local.", false},
		"of the internet":       {"https://api.shoot.example.com", true},
		"an address":            {"https://10.1.2.3:6443", false},
		"an address of IPv6":    {"https://[fd00::1]:6443", false},
		"a public address":      {"https://203.0.113.7", true},
		"a public one, of IPv6": {"https://[2001:db8::1]", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			target, err := Parse([]byte(valid("server: '"+tc.server+"'", "token: abc")))
			if err != nil {
				t.Fatal(err)
			}
			if target.Config.Host != tc.server || target.Config.BearerToken != "abc" || (target.External != "") != tc.external {
				t.Errorf("%+v, external %q", target.Config, target.External)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	const secret = "hunter2"
	tests := map[string]struct{ text, want string }{
		"nothing":            {"", `current-context: must be the name of one of contexts`},
		"no YAML":            {"a: b: " + secret, "kubeconfig: must be a kubeconfig, in YAML or JSON"},
		"another type":       {"users: " + secret, "kubeconfig: must be a kubeconfig"},
		"no context":         {strings.Replace(valid(server, ""), "current-context: x", "current-context: other", 1), `current-context: "other": must be the name of one of contexts`},
		"no cluster":         {strings.Replace(valid(server, ""), "cluster: c,", "cluster: d,", 1), `contexts[x].cluster: "d": must be`},
		"no user":            {strings.Replace(valid(server, ""), "user: u}", "user: v}", 1), `contexts[x].user: "v": must be`},
		"no server":          {valid("", "token: a"), "cluster.server: must be an address such as https://kube-apiserver"},
		"no TLS":             {valid("server: 'http://kube-apiserver'", ""), `cluster.server: "http://kube-apiserver": must be an address`},
		"a file as a server": {valid("server: '/etc/passwd'", ""), "cluster.server"},
		"exec":               {valid(server, "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: ["+secret+"], interactiveMode: Never}"), "user.exec: must not be given"},
		"auth-provider":      {valid(server, "auth-provider: {name: gcp, config: {a: "+secret+"}}"), "user.auth-provider: must not be given"},
		"token file":         {valid(server, "tokenFile: /"+secret), "user.tokenFile: must not be a file"},
		"certificate file":   {valid(server, "client-certificate: /"+secret), "user.client-certificate: must not be a file"},
		"key file":           {valid(server, "client-key: /"+secret), "user.client-key: must not be a file"},
		"CA file":            {valid(server+", certificate-authority: /etc/ca", ""), `cluster.certificate-authority: "/etc/ca": must not be a file`},
		"proxy":              {valid(server+", proxy-url: 'http://a:"+secret+"@b'", ""), "cluster.proxy-url: must not be given"},
		"no verification":    {valid(server+", insecure-skip-tls-verify: true", ""), "cluster.insecure-skip-tls-verify"},
		"loopback":           {valid("server: 'https://127.0.0.1:6443'", ""), `cluster.server: "https://127.0.0.1:6443": must not be an address of the host itself`},
		"all of loopback":    {valid("server: 'https://127.8.9.10'", ""), "must not be an address of the host itself"},
		"loopback of IPv6":   {valid("server: 'https://[::1]:6443'", ""), "must not be an address of the host itself"},
		"mapped loopback":    {valid("server: 'https://[::ffff:127.0.0.1]'", ""), "must not be an address of the host itself"},
		"unspecified":        {valid("server: 'https://0.0.0.0'", ""), "must not be an address of the host itself"},
		"localhost":          {valid("server: 'https://LOCALHOST.'", ""), "must not be an address of the host itself"},
		"metadata of clouds": {valid("server: 'https://169.254.169.254'", ""), "or of a cloud's metadata"},
		"metadata of AWS":    {valid("server: 'https://[fd00:ec2::254]'", ""), "or of a cloud's metadata"},
		"by NAT64":           {valid("server: 'https://[64:ff9b::169.254.169.254]'", ""), "or of a cloud's metadata"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			target, err := Parse([]byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), secret) {
				t.Errorf("Parse() = %v, %v, want %q, and no secret", target, err, tc.want)
			}
		})
	}
}

// A name may resolve to an address of the host, which is rejected then.
func TestDialRefusesOwnHost(t *testing.T) {
	target, err := Parse([]byte(valid(server, "token: abc")))
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{
		"127.0.0.1:443", "[::1]:443", "169.254.169.254:80", "[fe80::a9fe:a9fe%lo]:443", "[fd00:ec2::254]:80", "[fd20:ce::254]:80", "168.63.129.16:80",
		"100.100.100.200:80", "[::ffff:100.100.100.200]:80", "[64:ff9b::100.100.100.200]:80",
	} {
		if c, err := target.Config.Dial(t.Context(), "tcp", address); err == nil || !strings.Contains(err.Error(), "must not resolve to an address of the host itself") {
			t.Errorf("Dial(%s) = %v, %v, want it refused", address, c, err)
		}
	}
}
