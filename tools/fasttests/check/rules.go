package check

import (
	"go/types"
	"strings"
)

// rule is the reason why fast tests must not use something.
type rule int

const (
	allowed rule = iota
	// kernel is for sockets and processes, which are never allowed.
	kernel
	// clock is for waits, which are allowed in a bubble.
	clock
)

// advice returns the end of a message.
var advice = map[rule]string{
	kernel: "use internal/testing/virtual, or move the test to test/real",
	clock:  "run it in synctest.Test or virtual.Run, or move the test to test/real",
}

const (
	ours       = "github.com/sonde-mesh/sonde/internal/testing/"
	waitPath   = ours + "wait"
	virtualRun = ours + "virtual.Run"
)

// bubbles maps functions that run a parameter in a bubble to the parameter's index.
var bubbles = map[string]int{"testing/synctest.Test": 1, virtualRun: 2}

// forbidden has functions, methods and types by package. A name with a final * is a prefix.
var forbidden = map[string]struct {
	rule  rule
	names []string
}{
	"net": {kernel, []string{
		"Dial*", "Listen", "ListenConfig", "ListenIP", "ListenMulticastUDP", "ListenPacket", "ListenTCP", "ListenUDP",
		"ListenUnix", "ListenUnixgram",
	}},
	"crypto/tls":        {kernel, []string{"Listen", "Dial*"}},
	"net/http":          {kernel, []string{"ListenAndServe*"}},
	"net/http/httptest": {kernel, []string{"NewServer", "NewTLSServer", "NewUnstartedServer"}},
	"os":                {kernel, []string{"StartProcess"}},
	"os/exec":           {kernel, []string{"Command*"}},
	"syscall":           {kernel, []string{"ForkExec", "StartProcess", "Exec", "Socket"}},
	"time":              {clock, []string{"After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}},
	"context":           {clock, []string{"WithTimeout*", "WithDeadline*"}},
	waitPath:            {clock, []string{"*"}},
}

// ruleOf returns the rule about a function or a type of a package, and its name for messages.
func ruleOf(obj types.Object) (rule, string) {
	if obj.Pkg() == nil || obj.Parent() != obj.Pkg().Scope() {
		return allowed, ""
	}
	if _, isVar := obj.(*types.Var); isVar {
		return allowed, ""
	}
	f := forbidden[obj.Pkg().Path()]
	for _, name := range f.names {
		if prefix, more := strings.CutSuffix(name, "*"); obj.Name() == prefix || more && strings.HasPrefix(obj.Name(), prefix) {
			return f.rule, obj.Pkg().Name() + "." + obj.Name()
		}
	}
	return allowed, ""
}
